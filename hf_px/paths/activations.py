"""Rules of activations: a gate a = y/x, recorded on a real pass, or a gate in [0, 1] that the data computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .base import Args, Func, Kwargs, Norm, Rule, in_place
from .views import power

if TYPE_CHECKING:
    from .record_replay import Replay


@dataclass(frozen=True)
class Kept:
    """An output of the real pass, not copied: valid until something writes to it."""

    y: Tensor
    version: int

    @property
    def intact(self) -> bool:
        return self.y._version == self.version

    def copy(self) -> Kept:
        return Kept(self.y.clone(), 0)


@dataclass(frozen=True)
class Gate(Rule):
    at_zero: float  # derivative at 0, where y/x is undefined
    binary: bool = False  # ReLU: a in {0, 1} is y > 0

    def record(self, func: Func, args: Args, kwargs: Kwargs, norm: Norm) -> Any:
        x = args[0].clone() if in_place(func, args, kwargs) and not self.binary else args[0]
        y = func(*args, **kwargs)
        if self.binary:  # y is in memory anyway, and threshold_backward is the fastest kernel for "where y > 0"
            return y, Kept(y, y._version)
        return y, torch.where(x == 0, self.at_zero, y / x)

    def replay(self, run: Replay, saved: Any, func: Func, args: Args, kwargs: Kwargs) -> Any:
        x = args[0]
        if run.view.gates == 0:
            return run.alias(x)
        where = in_place(func, args, kwargs)
        if not self.binary:
            gate = power(saved, run.view.gates).to(x.dtype)
            return run.own(x).mul_(gate) if where else run.follow(x * gate, x)
        y = saved.y.to(x.dtype)
        return CloseGates.apply(run.own(x), y) if where else run.follow(_where_positive(x, y), x)


class CloseGates(torch.autograd.Function):
    """x ← x ⊙ [y > 0] in place. x.copy_(…) would cost autograd a copy, a tensor of zeros and a sum for each gate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        return torch.ops.aten.threshold_backward.grad_input(x, y, 0.0, grad_input=x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _where_positive(grad, *ctx.saved_tensors), None


def _where_positive(x: Tensor, y: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward(x, y, 0.0)


@dataclass(frozen=True)
class Clamp(Rule):
    """torch.clamp as an activation: a gate if 0 lies between its bounds, otherwise no rule."""

    def record(self, func: Func, args: Args, kwargs: Kwargs, norm: Norm) -> Any:
        low, high = _bounds(args, kwargs)
        if not low <= 0 <= high:
            return func(*args, **kwargs), None
        return Gate(float(low < 0 < high)).record(func, args, kwargs, norm)

    def replay(self, run: Replay, saved: Any, func: Func, args: Args, kwargs: Kwargs) -> Any:
        low, high = _bounds(args, kwargs)
        if not run.on_path(args[0]):
            return func(*args, **kwargs)
        if not low <= 0 <= high:
            return run.nonlinear(func, args, kwargs)
        return Gate(0.0).replay(run, saved, func, args, kwargs)


def _bounds(args: Args, kwargs: Kwargs) -> tuple[float, float]:
    low = kwargs.get("min", kwargs.get("min_val", args[1] if len(args) > 1 else None))
    high = kwargs.get("max", kwargs.get("max_val", args[2] if len(args) > 2 else None))
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        return 1.0, 0.0  # tensors as bounds have no rule
    return -torch.inf if low is None else float(low), torch.inf if high is None else float(high)


@dataclass(frozen=True)
class FrozenGate(Rule):
    """softmax, sigmoid: a gate in [0, 1] that the data computes. It is held as recorded, or open."""

    def record(self, func: Func, args: Args, kwargs: Kwargs, norm: Norm) -> Any:
        y = func(*args, **kwargs)
        return y, Kept(y, y._version)

    def replay(self, run: Replay, saved: Any, func: Func, args: Args, kwargs: Kwargs) -> Any:
        x = args[0]
        if not run.on_path(x):
            return func(*args, **kwargs)
        frozen = run.freeze(func, args, kwargs, None if saved is None else saved.y)
        if in_place(func, args, kwargs):
            run.own(x).copy_(frozen)
            return run.follow(run.off_path(x), frozen)
        return frozen


@dataclass(frozen=True)
class GatedUnit(Rule):
    """F.glu: a · sigmoid(b), where the second half of the channels is a frozen gate of the first."""

    def record(self, func: Func, args: Args, kwargs: Kwargs, norm: Norm) -> Any:
        axis = kwargs.get("dim", args[1] if len(args) > 1 else -1)
        return func(*args, **kwargs), args[0].chunk(2, axis)[1].sigmoid()

    def replay(self, run: Replay, saved: Any, func: Func, args: Args, kwargs: Kwargs) -> Any:
        axis = kwargs.get("dim", args[1] if len(args) > 1 else -1)
        value = args[0].chunk(2, axis)[0]
        if run.view.gates:
            value = value * power(saved, run.view.gates).to(value.dtype)
        return run.follow(value, args[0])
