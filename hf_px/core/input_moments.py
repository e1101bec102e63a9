"""G = E[x xᵀ] and E[x] of the inputs that each prunable weight meets, from one forward pass of the dense network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .batches import Batch, Batches
from .forward import call, undisturbed
from .linear_maps import LinearMap, LinearMaps
from .processes import gather, world_size

ROWS_PER_COLUMN = 6  # inputs drawn for a layer, in multiples of its columns: fewer overfit, more cost time
ROWS_PER_IMAGE = 40  # at least, where an image has that many positions

Key = tuple[str, int]  # name of the weight and its first row: attention may use a third of a weight at a time


class Gram:
    """G of one group of inputs: a matrix, or for a layer with more columns than inputs the inputs themselves."""

    def __init__(self, matrix: Tensor | None = None, inputs: Tensor | None = None) -> None:
        self._matrix = matrix
        self._inputs: Any = None if inputs is None else inputs / max(1, len(inputs)) ** 0.5  # G = XᵀX

    @property
    def is_matrix(self) -> bool:
        return self._matrix is not None

    @property
    def diagonal(self) -> Tensor:
        return self._matrix.diagonal() if self._matrix is not None else self._inputs.square().sum(0)

    def times(self, rows: Tensor) -> Tensor:
        """rows · G."""
        return rows @ self._matrix if self._matrix is not None else (rows @ self._inputs.t()) @ self._inputs

    def part(self, at: Tensor) -> Tensor:
        """G with the columns `at` alone."""
        if self._matrix is not None:
            return self._matrix.index_select(0, at).index_select(1, at)
        return self._inputs[:, at].t() @ self._inputs[:, at]


class InputMoments:
    """Sums over the inputs of one weight: [groups, n, columns] at a time."""

    def __init__(self, rows: slice, groups: int, columns: int, most: int, like: Tensor) -> None:
        self.rows, self.groups, self.most = rows, groups, most
        self.count = 0
        self.mean = like.new_zeros(groups, columns)
        self._wide: Any = [] if groups == 1 and most < columns else None
        self._sum = None if self._wide is not None else like.new_zeros(groups, columns, columns)

    def add(self, x: Tensor) -> None:
        self.count += x.shape[1]
        self.mean += x.sum(1)
        if self._sum is not None:
            self._sum.baddbmm_(x.transpose(1, 2), x)
        else:
            self._wide.append(x[0])

    def finish(self, centred: bool) -> list[Gram]:
        """G of each group over all processes; of x - E[x] if the layer has a bias, which takes up the mean."""
        if world_size() > 1:
            self.count = sum(gather(self.count))
            dist.all_reduce(self.mean)
            if self._sum is not None:
                dist.all_reduce(self._sum)
            else:
                everyone = gather([part.cpu() for part in self._wide])
                self._wide = [part.to(self.mean.device) for parts in everyone for part in parts]
        self.mean /= self.count
        if self._sum is None:
            x = torch.cat(self._wide)
            return [Gram(inputs=x - self.mean if centred else x)]
        self._sum /= self.count
        if centred:
            self._sum.baddbmm_(self.mean.unsqueeze(2), self.mean.unsqueeze(1), alpha=-1)
        return [Gram(matrix) for matrix in self._sum]

    def by_group(self, centred: bool) -> Iterator[tuple[slice, Gram]]:
        """(rows of the weight, G of their inputs) for each group."""
        size = (self.rows.stop - self.rows.start) // self.groups
        for group, gram in enumerate(self.finish(centred)):
            start = self.rows.start + group * size
            yield slice(start, start + size), gram


def measure_inputs(
    model: nn.Module, weights: Mapping[str, Tensor], batches: Iterable[Batch], images: int
) -> dict[Key, InputMoments]:
    """{key: moments} of the model with `weights`, over this process's batches; `images` are those of all processes."""
    found: dict[Key, InputMoments] = {}

    def add(one: LinearMap) -> None:
        if one.key not in found:
            columns = weights[one.name][0].numel()
            positions = one.positions * images // len(batch.x)  # of all images
            most = min(positions, max(ROWS_PER_COLUMN * columns, ROWS_PER_IMAGE * images))
            found[one.key] = InputMoments(one.rows, one.groups, columns, most, weights[one.name].detach())
        moments = found[one.key]
        moments.add(one.inputs(-(-moments.most * len(batch.x) // images)).to(moments.mean.dtype))

    for batch in batches:
        with torch.no_grad(), _without_fused_attention(), LinearMaps(weights, add):
            call(model, weights, batch)
    return found


def scores_by_layer(
    model: nn.Module, weights: Mapping[str, Tensor], batches: Batches, score: Callable[[Tensor, Gram], Tensor]
) -> dict[str, Tensor]:
    """score(rows of a weight, G of their inputs), divided by the layer's mean: the units differ between layers."""
    scores = {name: torch.zeros_like(w) for name, w in weights.items()}
    with undisturbed(model):
        moments = measure_inputs(model, dict(weights), batches.share(), batches.images())
    for (name, _), one in moments.items():
        for rows, gram in one.by_group(centred=False):
            own = weights[name][rows]
            scores[name][rows] = score(own.flatten(1), gram).view_as(own)
    return {name: s / s.mean().clamp_min(torch.finfo(s.dtype).tiny) for name, s in scores.items()}


@contextmanager
def _without_fused_attention() -> Iterator[None]:
    """torch's fused attention computes its projections where no LinearMap is seen."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
