"""scope="channel": channel classes compete by the mean score of their weights, S_c = mean of S_j over the rows of c.

The density is one of weights, or of multiply-adds: the worst classes go until at most that part is left. A class takes
with it what reads it, so that `shrink` removes all of it exactly. In groups, as channel:16, the worst sixteen channels
of a layer compete as one, by their mean, so that widths stay multiples of what kernels compute at once.
"""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from ..core.allocate import NO_FLOORS, Floors, Scope
from ..core.batches import Batch
from ..core.mask import Mask
from ..core.prunable import prunable
from ..core.registry import Scores
from ..core.text import name_list
from .classes import Channels
from .cut import cut_copy, families, refused, widths_without
from .shrink import analysed, differs, one_batch

Of = Literal["weights", "macs"]


@dataclass(frozen=True)
class ByChannel(Scope):
    """Whole channels, a layer's in groups of `multiple`; `of` says of what the density is. `prepared` before a call."""

    of: Of = "weights"
    multiple: int = 1
    channels: Channels | None = None

    @classmethod
    def named(cls, name: str, of: str) -> ByChannel:
        """The scope called channel or channel:N."""
        number = name.partition(":")[2] if name != "channel" else "1"
        if not number.isdecimal() or not 1 <= int(number) <= 4096:
            raise ValueError(
                f"`scope` {name!r} is unknown; whole channels are channel, or in groups channel:8, channel:16"
            )
        if of not in get_args(Of):
            raise ValueError(f"`of` {of!r} is unknown; there are {', '.join(get_args(Of))}")
        return cls(of, int(number))  # type: ignore[arg-type]

    def prepared(self, model: nn.Module, batch: Batch, names: Sequence[str], density: float) -> ByChannel:
        """With the channels of this model whose removal its code takes; an error if the density cannot be met.

        names   of the tensors that may be pruned; classes with rows or columns in others stay
        """
        channels = analysed(model, batch)
        channels = channels.without(_outside(channels, set(names)))
        singles = [{min(part)} for part in families(channels, set(channels.removable))]

        def works(some: set[int]) -> bool:
            masked = _mask(channels, some, list(prunable(model))).apply_(copy.deepcopy(model))
            return differs(masked, cut_copy(masked, widths_without(masked, channels, some)), batch) is None

        bad = refused(singles, works)
        whole = [part for part in families(channels, set(channels.removable)) if min(part) in bad]
        ready = replace(self, channels=channels.without(set().union(*whole)))
        ready._check_density(names, density)
        return ready

    def _check_density(self, names: Sequence[str], density: float) -> None:
        assert self.channels is not None
        order, _ = self._order(dict.fromkeys(self.channels.removable, 0.0))
        cost = _Cost(self.channels, order, names, self.of)
        least = cost.after(len(order)) / cost.after(0)
        if least > density + 1e-9 and not order:
            raise ValueError(
                f"`scope` channel:{self.multiple}: no layer has more than {self.multiple} channels that could go; take "
                "smaller groups"
            )
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
        order, ends = self._order(means)
        cost = _Cost(self.channels, order, names, self.of)
        target = density * cost.after(0) * (1 + 1e-12)
        enough = bisect_left(ends, True, key=lambda n: cost.after(n) <= target)
        least = sum(means[c] is None for c in order)  # pruned in an earlier round
        count = max(least, ends[min(enough, len(ends) - 1)])
        mask = _mask(self.channels, set(order[:count]), names)
        return Mask({name: bits.to(within.bits[name].device) & within.bits[name] for name, bits in mask.bits.items()})

    def _order(self, means: Mapping[int, float | None]) -> tuple[list[int], list[int]]:
        """(classes in the order in which they go, numbers of classes after which a group is complete)

        Pruned classes come first. A layer's best channel stays, and of its groups the best one.
        """
        assert self.channels is not None

        def mean(classes: Sequence[int]) -> float:
            known = [m for c in classes if (m := means[c]) is not None]
            return sum(known) / len(known) if known else -math.inf

        groups = [[c] for c in means]
        if self.multiple > 1:
            rows = _rows_by_class(self.channels)
            groups = []
            for family in families(self.channels, set(means)):
                ranked = sorted(family, key=lambda c: (mean([c]), c))
                groups += _groups(ranked, self.multiple // min(rows[c] for c in family))
        groups.sort(key=lambda group: (mean(group), group))
        order = _sparing(self.channels, [c for group in groups for c in group])
        place = {c: n for n, c in enumerate(order, 1)}
        ends = [max(places) for group in groups if (places := [place[c] for c in group if c in place])]
        return order, [0, *ends]


def _groups(ranked: Sequence[int], size: int) -> list[list[int]]:
    """Groups of `size`, worst first; the first is smaller if they do not come out even, and the last one stays."""
    if size <= 1:
        return [[c] for c in ranked]
    cuts = list(range(len(ranked) % size, len(ranked), size))
    return [list(ranked[a:b]) for a, b in itertools.pairwise([0, *cuts]) if a < b]


def _rows_by_class(channels: Channels) -> dict[int, int]:
    """{class: the fewest rows that it has in a layer}"""
    found: dict[int, int] = {}
    for use in channels.linear:
        for c, rows in zip(*(t.tolist() for t in use.outputs.unique(return_counts=True))):
            found[c] = min(rows, found.get(c, rows))
    return found


def fitted(
    scope: Scope,
    model: nn.Module,
    weights: Mapping[str, Tensor],
    density: float,
    input_size: Sequence[int] | None,
    batches: Iterable[Any] | None,
) -> Scope:
    """The scope, `prepared` for this model if whole channels compete."""
    if not isinstance(scope, ByChannel):
        return scope
    return scope.prepared(model, one_batch(model, input_size, batches), list(weights), density)


THIN = 1 / 16  # of its rows; mean scores differ by layer, and a ranking may starve one


def warn_of_thin_layers(scope: Scope, mask: Mask) -> None:
    """Where whole channels were pruned, name layers that keep a sixteenth of theirs or less."""
    if not isinstance(scope, ByChannel):
        return
    rows = {name: bits.flatten(1).any(1) for name, bits in mask.bits.items() if bits.dim() > 1}
    thin = [f"{name} ({int(r.sum())} of {len(r)})" for name, r in rows.items() if int(r.sum()) <= THIN * len(r)]
    if thin:
        warnings.warn(
            f"few channels are left in {len(thin)} of {len(rows)} layers ({name_list(thin)}): the mean scores of "
            "layers differ. Another scorer, more `rounds`, a lower `sparsity`, or `exclude` gives them more",
            stacklevel=4,
        )


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
