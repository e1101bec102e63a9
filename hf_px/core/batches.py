"""Batches: Σ_b f(b) over every batch of every process. The only place where data is split and sums are reduced."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .processes import rank, world_size
from .seeds import mix_seed

Contribution = Mapping[str, Tensor] | tuple[Mapping[str, Tensor], int]  # values, or (values, e) for values · 2^e


@dataclass(frozen=True)
class Batch:
    """One batch: the images `x`, the model's other inputs, and labels if there are any."""

    x: Tensor
    labels: Tensor | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None  # the keyword under which the model takes x; None: the first argument
    index: int = 0
    start: int = 0  # place of the first image in the whole batch, for a part of it

    @property
    def inputs(self) -> Any:
        return self.x if self.key is None else {self.key: self.x, **self.others}

    def __iter__(self) -> Iterator[Any]:
        """Unpack as `for inputs, labels in batches`."""
        return iter((self.inputs, self.labels))

    def call_args(self, x: Tensor | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) for the model, with `x` in place of the images if given."""
        x = self.x if x is None else x
        return ((x,), dict(self.others)) if self.key is None else ((), {self.key: x, **self.others})

    def part(self, start: int, stop: int) -> Batch:
        """The images start to stop - 1, with what belongs to them."""
        n, at = len(self.x), slice(start, stop)
        others = {k: v[at] if isinstance(v, Tensor) and v.dim() and len(v) == n else v for k, v in self.others.items()}
        labels = None if self.labels is None else self.labels[at]
        return Batch(self.x[at], labels, others, self.key, self.index, self.start + start)

    def parts(self, values: int | None) -> Iterator[Batch]:
        """Parts with at most so many values of images, at least one image each; None: the whole batch."""
        n = len(self.x)
        size = n if values is None else max(1, values * n // self.x.numel())
        return (self.part(start, start + size) for start in range(0, n, size)) if size < n else iter([self])

    def row(self, i: int = 0) -> Batch:
        """One sample alone, the first by default."""
        return self.part(i, i + 1)

    def samples(self) -> Iterator[Batch]:
        """Each sample alone."""
        return map(self.row, range(len(self.x)))

    def seeded(self, generator: torch.Generator) -> torch.Generator:
        """A generator for this batch or part: its draws do not depend on which process scores it."""
        place = (self.index + 1, self.start) if self.start else (self.index + 1,)
        return torch.Generator().manual_seed(mix_seed(generator.initial_seed(), *place))


class Batches:
    """Batches on the model's device, iterable many times; every process takes some of the batches as its share."""

    def __init__(
        self, data: Iterable[Any], device: torch.device | str = "cpu", dtype: torch.dtype | None = None
    ) -> None:
        if isinstance(data, Iterator):
            raise ValueError("`batches` is an iterator, used up after one round; pass a list or a DataLoader")
        if not isinstance(data, Iterable):
            raise ValueError(
                f"`batches` is {data!r:.40}; pass a list or a DataLoader of inputs, or of (inputs, labels)"
            )
        pair = isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], Tensor) and data[1].dim() == 1
        if isinstance(data, (Tensor, Mapping)) or pair:  # (inputs, labels)
            raise ValueError("`batches` is a single batch; put it in a list: [batch]")
        self._data = data
        self._device = torch.device(device)
        self._dtype = dtype  # the model's dtype; batches are converted to it
        self.rank, self.world = rank(), world_size()
        self.tick: Callable[[], Any] | None = None  # called after each batch of this process's share
        self._part: int | None = None

    def first(self) -> Batch:
        for item in self._data:
            return _batch(item, 0, self._device, self._dtype)
        raise ValueError("`batches` is empty; pass at least one batch of inputs")

    def __iter__(self) -> Iterator[Batch]:
        """Every batch, on every process: for methods whose batches depend on each other."""
        for index, item in enumerate(self._data):
            yield _batch(item, index, self._device, self._dtype)

    def images(self) -> int:
        """The number of images in the batches of all processes."""
        return sum(len(batch.x) for batch in self)

    def in_parts(self, values: int) -> Batches:
        """The same batches in parts, for sums over images in less memory; not where statistics are of a batch."""
        other = copy(self)
        other._part = values
        return other

    def share(self) -> Iterator[Batch]:
        """This process's batches; no other process takes a part of them, since their statistics belong together."""
        for index, item in enumerate(self._data):
            if index % self.world == self.rank:
                yield from _batch(item, index, self._device, self._dtype).parts(self._part)
                if self.tick is not None:
                    self.tick()

    def sum(self, contribution: Callable[[Batch], Contribution], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Σ_b contribution(b), signed, over all processes; `like` gives names and shapes.

        A contribution may be (values, e) for values · 2^e, since path sums of deep networks leave every float range.
        The sum is then exact up to one factor common to all weights, and exact where its dtype holds it. The tensors of
        a contribution may be overwritten.
        """
        total: dict[str, Tensor] = {}
        top: int | None = None
        for batch in self.share():
            part = contribution(batch)
            values, exponent = part if isinstance(part, tuple) else (part, 0)
            if top is None:
                total, top = {name: values[name] for name in like}, exponent
                continue
            if exponent != top:  # a sum of zero has no exponent and must not push the other one out of range
                if not any(bool(v.any()) for v in values.values()):
                    continue
                top = top if any(bool(v.any()) for v in total.values()) else exponent
            # float64, so that the order of batches and processes does not decide the mask
            high = max(top, exponent)
            for name in like:  # one by one, so that little is held twice
                total[name] = total[name].double() * _power(top - high)
                total[name] += values[name].double() * _power(exponent - high)
            top = high
        if self.world > 1:
            total, top = self._reduce(total, top, like)
        if top is None:
            raise ValueError("`batches` is empty; pass at least one batch of inputs")
        # rounded to the weights' dtype, so that one process and two give the same bits
        return {name: v.to(like[name].dtype) for name, v in _unscale(total, top, like).items()}

    @staticmethod
    def once(values: Mapping[str, Tensor], exponent: int) -> dict[str, Tensor]:
        """values · 2^e, for scores that do not depend on a batch: every process has computed the same."""
        return _unscale(dict(values), exponent, values)

    def _reduce(
        self, total: dict[str, Tensor], top: int | None, like: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], int | None]:
        none = -(2**40)  # exponent of a process without a batch: it never is the largest
        high = torch.tensor(none if top is None else top, device=self._device)
        dist.all_reduce(high, op=dist.ReduceOp.MAX)
        common = int(high)
        if common == none:
            return total, None
        summed = {}
        for name, weight in like.items():
            if top is None:
                mine = torch.zeros_like(weight, dtype=torch.float64)
            else:
                mine = (total[name].double() * _power(top - common)).contiguous()
            dist.all_reduce(mine)
            summed[name] = mine
        return summed, common


def _power(exponent: int) -> float:
    return 2.0**exponent if exponent > -1000 else 0.0  # below that, the term vanishes beside the other


def _unscale(values: dict[str, Tensor], exponent: int, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """values · 2^e, in place, if the dtype of `like` holds it; if not, all values stay without the factor."""
    if exponent == 0 or not values:
        return values
    largest = 100 if min(v.dtype.itemsize for v in like.values()) <= 4 else 1000
    range_of_values = 150 if max(v.dtype.itemsize for v in values.values()) <= 4 else 1080
    if abs(exponent) > largest + range_of_values:  # no peak would do, so none is looked for in millions of values
        return values
    ends = [v.aminmax() for v in values.values() if v.numel()]  # both in one pass over memory
    peak = max(max(float(high), -float(low)) for low, high in ends)
    if not 0.0 < peak < math.inf or abs(exponent + math.frexp(peak)[1]) > largest:
        return values
    half = exponent // 2  # two steps: 2^e alone may be out of range although values · 2^e is not
    for v in values.values():
        v.mul_(2.0**half).mul_(2.0 ** (exponent - half))
    return values


def _batch(item: Any, index: int, device: torch.device, dtype: torch.dtype | None) -> Batch:
    """A Batch from (inputs, labels), from a dict as transformers makes it, or from bare inputs."""
    if isinstance(item, Batch):
        return item
    labels: Any = None
    if isinstance(item, (tuple, list)):
        if not 1 <= len(item) <= 2:
            raise ValueError(f"batch {index} has {len(item)} parts; expected (inputs, labels) or inputs alone")
        item, labels = item if len(item) == 2 else (item[0], None)
    tensors = item.values() if isinstance(item, Mapping) else [item]
    if any(isinstance(x, Tensor) and x.is_meta for x in tensors):
        raise ValueError(f"batch {index} is on the meta device, where tensors have no values; pass real images")
    if isinstance(item, Mapping):
        fields = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in item.items()}
        for name in ("labels", "label"):
            labels = fields.pop(name, labels)
        floats = [k for k, v in fields.items() if isinstance(v, Tensor) and v.is_floating_point()]
        if not floats:
            raise ValueError(
                f"batch {index} has no floating-point tensor among {sorted(fields)}; expected pixel_values"
            )
        key = "pixel_values" if "pixel_values" in floats else floats[0]
        x = fields.pop(key)
        others = fields
    elif isinstance(item, Tensor):
        x, others, key = item.to(device), {}, None
    else:
        raise TypeError(f"batch {index} is a {type(item).__name__}; expected a tensor, a dict or (inputs, labels)")
    if labels is not None:
        labels = torch.as_tensor(labels).to(device)
        if labels.dim() and x.dim() and len(labels) != len(x):
            raise ValueError(f"batch {index}: {len(x)} inputs, but {len(labels)} labels; one label per input is needed")
    if not x.is_floating_point():
        raise TypeError(f"batch {index}: inputs are {x.dtype}; scale and convert the images to float first")
    if not len(x):
        raise ValueError(f"batch {index} holds no samples")
    if not bool(torch.isfinite(x).all()):
        raise ValueError(f"batch {index}: inputs hold nan or inf; check the data and its normalisation")
    x = x if dtype is None else x.to(dtype)
    return Batch(x, labels, others, key, index)
