"""Rules of activations: a gate a = y/x, recorded on a real pass, or a gate in [0, 1] that the data computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .base import Args, Func, Kwargs, Norm, Rule, in_place
from .normalisation import Statistic
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
        if self.binary:
            # a byte per gate, while y is in the cache: the memory of y goes to the next layers, as in a plain pass.
            # bool() is the fastest way to it, and torch multiplies by bytes much faster than by bool
            return y, y.bool().view(torch.uint8)
        return y, torch.where(x == 0, self.at_zero, y / x)

    def replay(self, run: Replay, saved: Any, func: Func, args: Args, kwargs: Kwargs) -> Any:
        x = args[0]
        if run.view.gates == 0:
            return run.alias(x)
        gate = saved if self.binary else power(saved, run.view.gates).to(x.dtype)
        return run.own(x).mul_(gate) if in_place(func, args, kwargs) else run.follow(x * gate, x)


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
class Power(Rule):
    """x^p: an activation for p ≥ 1, a scale computed by hand for p < 1, as in x · (mean x²)^-½."""

    def record(self, func: Func, args: Args, kwargs: Kwargs, norm: Norm) -> Any:
        return self._rule(args, kwargs).record(func, args, kwargs, norm)

    def replay(self, run: Replay, saved: Any, func: Func, args: Args, kwargs: Kwargs) -> Any:
        exponent = _exponent(args, kwargs)
        if not run.on_path(args[0]) and not run.on_path(exponent):
            return func(*args, **kwargs)
        if not isinstance(exponent, (int, float)):
            return run.nonlinear(func, args, kwargs, "has a tensor as its exponent")
        return self._rule(args, kwargs).replay(run, saved, func, args, kwargs)

    @staticmethod
    def _rule(args: Args, kwargs: Kwargs) -> Rule:
        exponent = _exponent(args, kwargs)
        scale = not isinstance(exponent, (int, float)) or exponent < 1
        return Statistic() if scale else Gate(float(exponent == 1))


def _exponent(args: Args, kwargs: Kwargs) -> Any:
    return kwargs["exponent"] if "exponent" in kwargs else args[1]


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
        value, steering = (run.follow(half, args[0]) for half in args[0].chunk(2, axis))
        gate = run.freeze(torch.sigmoid, (steering,), {}, saved)
        if run.on_path(gate):  # a walk may go through what steers
            return run.product(torch.mul, (value, gate), {})
        return run.follow(value * gate, args[0])
