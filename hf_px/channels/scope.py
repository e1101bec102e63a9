"""scope="channel": channel classes compete by the mean score of their weights, S_c = mean of S_j over the rows of c.

The density is one of weights, or of multiply-adds: the worst classes go until at most that part is left. A class takes
with it what reads it, so that `shrink` removes all of it exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from ..core.allocate import NO_FLOORS, Floors, Scope
from ..core.batches import Batch
from ..core.mask import Mask
from ..core.registry import Scores
from .classes import Channels
from .cut import cut_copy, families, refused, widths_without
from .shrink import analysed, differs, one_batch

Of = Literal["weights", "macs"]


@dataclass(frozen=True)
class ByChannel(Scope):
    """Whole channels; `of` says of what the density is. `prepared` for a model before it is called."""

    of: Of = "weights"
    channels: Channels | None = None

    def check(self, shapes: Mapping[str, torch.Size], density: float) -> None:
        if self.of not in get_args(Of):
            raise ValueError(f"`of` {self.of!r} is unknown; there are {', '.join(get_args(Of))}")

    def prepared(self, model: nn.Module, batch: Batch, names: Sequence[str], density: float) -> ByChannel:
        """With the channels of this model whose removal its code takes; an error if the density cannot be met.

        names   of the tensors that may be pruned; classes with rows or columns in others stay
        """
        channels = analysed(model, batch)
        channels = channels.without(_outside(channels, set(names)))
        singles = [{min(part)} for part in families(channels, set(channels.removable))]

        def works(some: set[int]) -> bool:
            masked = _mask(channels, some, names).apply_(copy.deepcopy(model))
            return differs(masked, cut_copy(masked, widths_without(masked, channels, some)), batch) is None

        bad = refused(singles, works)
        whole = [part for part in families(channels, set(channels.removable)) if min(part) in bad]
        ready = replace(self, channels=channels.without(set().union(*whole)))
        ready._check_density(names, density)
        return ready

    def _check_density(self, names: Sequence[str], density: float) -> None:
        assert self.channels is not None
        order = _sparing(self.channels, self.channels.removable)
        cost = _Cost(self.channels, order, names, self.of)
        least = cost.after(len(order)) / cost.after(0)
        if least > density + 1e-9:
            what = "multiply-adds" if self.of == "macs" else "weights"
            raise ValueError(
                f"`sparsity` {1 - density:g} cannot be met by whole channels: {least:.1%} of the {what} of this model "
                f"belong to channels that must stay; {1 - least - 5e-4:.3f} is the most, or take another `scope`"
            )

    def __call__(self, scores: Scores, density: float, within: Mask, floors: Floors = NO_FLOORS) -> Mask:
        assert self.channels is not None, "call `prepared` first"
        names = list(scores)
        means = _mean_scores(self.channels, scores, within)
        gone = {c for c, mean in means.items() if mean is None}
        ranked = sorted((c for c in means if c not in gone), key=lambda c: (means[c], c))
        order = _sparing(self.channels, [*sorted(gone), *ranked])
        cost = _Cost(self.channels, order, names, self.of)
        target = density * cost.after(0) * (1 + 1e-12)
        count = next((n for n in range(len(gone), len(order) + 1) if cost.after(n) <= target), len(order))
        mask = _mask(self.channels, set(order[:count]), names)
        return Mask({name: bits.to(within.bits[name].device) & within.bits[name] for name, bits in mask.bits.items()})


def fitted(
    scope: Scope,
    model: nn.Module,
    weights: Mapping[str, Tensor],
    density: float,
    input_size: Sequence[int] | None,
    batches: Iterable[Any] | None,
) -> Scope:
    """The scope, checked, and `prepared` for this model if whole channels compete."""
    scope.check({name: weight.shape for name, weight in weights.items()}, density)
    if not isinstance(scope, ByChannel):
        return scope
    return scope.prepared(model, one_batch(model, input_size, batches), list(weights), density)


def _outside(channels: Channels, names: set[str]) -> set[int]:
    """Classes with rows or columns in linear layers that may not be pruned."""
    fixed = {use.weight for use in channels.linear} - names
    return {c for use in channels.linear if use.weight in fixed for c in (*use.inputs.tolist(), *use.outputs.tolist())}


def _mask(channels: Channels, removed: set[int], names: Sequence[str]) -> Mask:
    """Zeros in all rows and columns of the classes."""
    gone, bits = torch.tensor(sorted(removed), dtype=torch.int64), {}
    for name in names:
        kept = torch.ones(channels.shapes[name], dtype=torch.bool)
        for dim, axis in enumerate(channels.axes.get(name, ())):
            if axis is not None:
                kept.index_fill_(dim, torch.isin(axis, gone).nonzero().view(-1), False)
        bits[name] = kept
    return Mask(bits)


def _mean_scores(channels: Channels, scores: Scores, within: Mask) -> dict[int, float | None]:
    """{class: mean score of the weights of its rows; None if they are pruned already}"""
    size = 1 + max((int(axis.max()) for axis in channels.all_axes()), default=0)
    total, count = np.zeros(size), np.zeros(size)
    for use in channels.linear:
        if use.weight in scores:
            bits = within.bits[use.weight]
            rows = (scores[use.weight].detach().double() * bits).flatten(1).sum(1).cpu().numpy()
            np.add.at(total, use.outputs.numpy(), rows)
            np.add.at(count, use.outputs.numpy(), bits.flatten(1).sum(1).cpu().numpy())
    return {c: float(total[c] / count[c]) if count[c] else None for c in channels.removable}


def _sparing(channels: Channels, order: Sequence[int]) -> list[int]:
    """The order without the classes that would leave a tensor without rows or columns."""
    axes = [np.unique(axis.numpy(), return_counts=True) for axis in channels.all_axes()]
    left = [int(counts.sum()) for _, counts in axes]
    places: dict[int, list[tuple[int, int]]] = {}
    for number, (classes, counts) in enumerate(axes):
        for c, n in zip(classes.tolist(), counts.tolist()):
            places.setdefault(c, []).append((number, n))
    taken = []
    for c in order:
        if all(left[number] > n for number, n in places[c]):
            taken.append(c)
            for number, n in places[c]:
                left[number] -= n
    return taken


class _Cost:
    """Weights or multiply-adds that are left after the first n classes of an order have gone."""

    def __init__(self, channels: Channels, order: Sequence[int], names: Sequence[str], of: Of) -> None:
        rank = {c: n for n, c in enumerate(order)}
        every = len(order)
        uses = [(use.weight, use.positions) for use in channels.linear]
        if of == "weights":
            uses = [(name, 1) for name in names]
        self.parts = []
        for name, factor in uses:
            shape = channels.shapes[name]
            sorted_ranks = []
            for dim, size in enumerate(shape):
                axis = channels.axes.get(name, [None] * len(shape))[dim]
                if axis is None:
                    factor *= size
                else:
                    sorted_ranks.append(np.sort([rank.get(c, every) for c in axis.tolist()]))
            self.parts.append((factor, sorted_ranks))

    def after(self, n: int) -> int:
        total = 0
        for factor, ranks in self.parts:
            for places in ranks:
                factor *= len(places) - int(np.searchsorted(places, n, side="left"))
            total += factor
        return total
