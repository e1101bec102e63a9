"""The rules of max-pooling and of the largest value of an axis: they pass on the recorded winner.

With every gate open they sum their window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Args, Func, Kwargs, Norm, Rule, per_dimension
from .views import power

if TYPE_CHECKING:
    from .record_replay import Replay


@dataclass(frozen=True)
class MaxPool(Rule):
    dims: int
    adaptive: bool = False

    def record(self, func: Func, args: Args, kwargs: Kwargs, norm: Norm) -> Any:
        name = f"{'adaptive_' if self.adaptive else ''}max_pool{self.dims}d"
        return getattr(F, name)(*args, **{**kwargs, "return_indices": True})

    def replay(self, run: Replay, saved: Any, func: Func, args: Args, kwargs: Kwargs) -> Any:
        x = args[0]
        if run.view.gates == 0:  # all paths of the window pass
            total = self._adaptive_window_sum(*args, **kwargs) if self.adaptive else self._window_sum(*args, **kwargs)
            return run.follow(total, x)
        winners = x.flatten(-self.dims).gather(-1, saved.flatten(-self.dims)).view(saved.shape)
        # in the memory layout of the recorded pass: mixed layouts would cost more than the convolutions
        return run.follow(torch.empty_like(saved, dtype=x.dtype).copy_(winners), x)

    def _adaptive_window_sum(self, x: Tensor, output_size: Any, return_indices: bool = False) -> Tensor:
        total = getattr(F, f"adaptive_avg_pool{self.dims}d")(x, output_size)
        for axis in range(-self.dims, 0):
            n, out = x.shape[axis], total.shape[axis]
            windows = [-(-(i + 1) * n // out) - i * n // out for i in range(out)]
            total = total * total.new_tensor(windows).view([-1] + [1] * (-axis - 1))
        return total

    def _window_sum(
        self,
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Tensor:
        given = (kernel_size, stride or kernel_size, padding, dilation)
        size, stride, padding, dilation = (per_dimension(v, self.dims) for v in given)
        spans = [d * (k - 1) + 1 for d, k in zip(dilation, size)]
        pads: list[int] = []
        for n, span, step, p in reversed(list(zip(x.shape[-self.dims :], spans, stride, padding))):
            steps = (n + 2 * p - span) // step
            if ceil_mode:
                steps = -(-(n + 2 * p - span) // step)
                steps -= steps * step >= n + p  # the last window must start inside the input or its left padding
            pads += [p, max(p, steps * step + span - n - p)]
        ones = torch.ones(x.shape[1], 1, *size, dtype=x.dtype, device=x.device)
        conv = getattr(F, f"conv{self.dims}d")
        return conv(F.pad(x, pads), ones, stride=stride, dilation=dilation, groups=x.shape[1])


@dataclass(frozen=True)
class Largest(Rule):
    """x.amax(axes) and x.max(axis); winners of equal size share one gate."""

    def record(self, func: Func, args: Args, kwargs: Kwargs, norm: Norm) -> Any:
        output, axes = func(*args, **kwargs), _axes(args, kwargs)
        if axes is None:
            return output, None
        won = args[0] == args[0].amax(axes, keepdim=True)
        return output, won / won.sum(axes, keepdim=True)

    def replay(self, run: Replay, saved: Any, func: Func, args: Args, kwargs: Kwargs) -> Any:
        x, axes = args[0], _axes(args, kwargs)
        if axes is None or not run.on_path(x):
            found = any(run.on_path(t) for t in (*args, *kwargs.values()))
            return run.nonlinear(func, args, kwargs) if found else func(*args, **kwargs)
        gate = 1 if run.view.gates == 0 else power(saved, run.view.gates).to(x.dtype)
        keep = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
        y = run.follow((x * gate).sum(axes, keepdim=keep), x)
        return y if func.__name__ == "amax" else torch.return_types.max((y, func(*args, **kwargs)[1]))


def _axes(args: Args, kwargs: Kwargs) -> Any:
    """The axes of x.amax(axes) or x.max(axis); None for the largest of two tensors or of all values."""
    axes = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return None if isinstance(axes, Tensor) or axes == () else axes
