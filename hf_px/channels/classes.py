"""Channel classes: units that can only be removed together, and the rows and columns of tensors that go with them.

residual streams    all layers that write into one sum
depthwise, groups   a group's inputs and outputs
attention           queries, keys and values of a head
split or merged     whole blocks, so that what is left of a tensor is still a box
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ..core.batches import Batch
from .follow import follow
from .labels import LinearUse, Trail
from .union_find import PINNED, Units

Axes = dict[str, list[Tensor | None]]  # {tensor: for each dimension the class of each index, None if it is never cut}


@dataclass
class Channels:
    """Which class each row, column and unit belongs to; class 0 stays."""

    axes: Axes
    linear: list[LinearUse]  # with classes in place of units
    heads: dict[str, Tensor]  # {module: class of each head}
    shapes: dict[str, torch.Size]
    alive: bool = True  # an output depends on the input

    @property
    def removable(self) -> list[int]:
        """Classes that can go: not pinned, and none of which is all of a tensor's rows or columns."""
        found: set[int] = set()
        whole: set[int] = {PINNED}
        for axis in self.all_axes():
            members = axis.unique().tolist()
            found |= set(members)
            if len(members) == 1:
                whole |= set(members)
        return sorted(found - whole)

    def all_axes(self) -> list[Tensor]:
        return [axis for axes in self.axes.values() for axis in axes if axis is not None]

    def kept(self, removed: set[int]) -> dict[str, list[Tensor | None]]:
        """{tensor: for each dimension the indices that stay, or None if all do} of tensors that lose any."""
        gone = torch.tensor(sorted(removed), dtype=torch.int64)
        found = {}
        for name, axes in self.axes.items():
            kept = [None if axis is None else _kept(axis, gone) for axis in axes]
            if any(indices is not None for indices in kept):
                found[name] = kept
        return found

    def without(self, pinned: set[int]) -> Channels:
        """The same with these classes pinned."""
        if not pinned:
            return self
        low = torch.tensor(sorted(pinned))

        def pin(classes: Tensor) -> Tensor:
            return classes.masked_fill(torch.isin(classes, low), PINNED)

        return Channels(
            {name: [None if a is None else pin(a) for a in axes] for name, axes in self.axes.items()},
            [_mapped(use, pin) for use in self.linear],
            {name: pin(classes) for name, classes in self.heads.items()},
            self.shapes,
            self.alive,
        )


def _kept(axis: Tensor, gone: Tensor) -> Tensor | None:
    stays = ~torch.isin(axis, gone)
    return None if bool(stays.all()) else stays.nonzero().view(-1)


def channels_of(model: nn.Module, batch: Batch) -> Channels:
    """The channel classes of a model; `batch` gives the input's shape."""
    shapes = {name: t.shape for name, t in (*model.named_parameters(), *model.named_buffers())}
    trail = follow(model, batch)
    while True:
        before = trail.units.parent.copy()
        axes = _axes(trail, shapes)
        _keep_boxes(trail)
        if np.array_equal(trail.units.find(torch.from_numpy(np.arange(len(before)))).numpy(), _roots(before)):
            break
    find = trail.units.find
    return Channels(
        {name: [None if a is None else find(a) for a in of] for name, of in axes.items()},
        [_mapped(use, find) for use in trail.linear],
        {name: find(units) for name, units in trail.heads.items()},
        shapes,
        trail.alive,
    )


def _roots(parent: np.ndarray) -> np.ndarray:
    units = Units()
    units.parent = parent
    return units.find(torch.arange(len(parent))).numpy()


def _mapped(use: LinearUse, to: object) -> LinearUse:
    assert callable(to)
    return LinearUse(
        use.weight, to(use.inputs), to(use.outputs), use.constants, use.groups, use.padded, use.positions
    )  # fmt: skip


def _axes(trail: Trail, shapes: Mapping[str, torch.Size]) -> Axes:
    """Units of rows and columns; where two uses of a tensor name two units, those are joined."""
    units, axes = trail.units, {name: [None] * len(shape) for name, shape in shapes.items()}  # type: Units, Axes
    for use in trail.linear:
        _own(units, axes[use.weight], 0, use.outputs)
        if use.groups == 1:
            _own(units, axes[use.weight], 1, use.inputs)
    for name, elements, met in trail.meetings:
        _own_met(units, axes[name], shapes[name], elements, met)
    return {name: of for name, of in axes.items() if any(axis is not None for axis in of)}


def _own(units: Units, axes: list[Tensor | None], dim: int, labels: Tensor) -> None:
    known = axes[dim]
    if known is None:
        axes[dim] = labels
    else:
        units.join(known, labels)


def _own_met(units: Units, axes: list[Tensor | None], shape: torch.Size, elements: Tensor, met: Tensor) -> None:
    """The one dimension along which a parameter's elements go with the units that they met."""
    classes = units.find(met)
    indices = np.unravel_index(elements.numpy(), tuple(shape)) if len(shape) else ()
    pairs = torch.unique(torch.stack([elements, classes]), dim=1)
    if pairs.shape[1] > len(elements.unique()):
        return  # an element meets several classes: it is broadcast over them, and stays as it is
    for dim, index in enumerate(indices):
        place = torch.from_numpy(index)
        along = torch.unique(torch.stack([place, classes]), dim=1)
        if along.shape[1] == len(place.unique()):
            if bool((along[1] == along[1, 0]).all()) and shape[dim] == 1:
                continue
            labels = torch.full((shape[dim],), PINNED)
            labels[along[0]] = along[1]
            _own(units, axes, dim, labels)
            return
    if bool((classes != PINNED).any()) and len(classes.unique()) > 1:
        units.pin(classes)  # the elements to remove would be no rows or columns


def _keep_boxes(trail: Trail) -> None:
    """Join units until each tensor is a box whatever classes go: a class spans whole slices along one dimension."""
    units, seen = trail.units, set()
    for grid in trail.grids:
        classes = units.find(grid)
        key = (tuple(classes.shape), classes.numpy().tobytes())
        if key in seen or bool((classes == classes.flatten()[0]).all()):
            continue
        seen.add(key)
        dims = range(classes.dim())
        if any(_slices(classes, dim) for dim in dims):
            continue
        best = max(dims, key=lambda dim: _left(units, classes, dim))
        units.join_along(classes, *(d for d in dims if d != best))


def _slices(classes: Tensor, dim: int) -> bool:
    """True if the class depends on the index along `dim` alone."""
    lines = classes.movedim(dim, 0).flatten(1)
    return bool((lines == lines[:, :1]).all())


def _left(units: Units, classes: Tensor, dim: int) -> int:
    """Number of classes that would be left if they were joined along all dimensions but `dim`."""
    trial = units.copy()
    trial.join_along(classes, *(d for d in range(classes.dim()) if d != dim))
    return len(trial.find(classes).unique())
