"""The rule of normalisation: y = γ/σ · x, with σ recorded, stored, taken from the flow on the paths, or unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from .base import Args, Func, Kwargs, Norm, Rule, arguments
from .views import power

if TYPE_CHECKING:
    from .record_replay import Replay


@dataclass(frozen=True)
class Scale:
    """The recorded scale: y = γ · r · (x - μ) + β, with r = 1/σ shaped to broadcast against x."""

    r: Tensor
    gamma: Tensor | None


@dataclass(frozen=True)
class Normalisation(Rule):
    kind: Literal["batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "normalize"]

    def record(self, func: Func, args: Args, kwargs: Kwargs, norm: Norm) -> Any:
        x, given = args[0], arguments(self.kind, func, args, kwargs)
        gamma, beta = given.get("weight"), given.get("bias")
        eps: Any = given.get("eps")
        channels = [1, -1] + [1] * (x.dim() - 2)
        if self.kind == "batch_norm":
            stored = given["running_var"]
            if stored is not None and norm == "running" and not given["training"]:
                return func(*args, **kwargs), Scale((stored + eps).rsqrt().view(channels), _shape(gamma, channels))
            if x.numel() == x.shape[1]:
                raise ValueError(
                    f"batch statistics of {tuple(x.shape)}: one value per channel has no variance; use larger batches"
                )
            y, _, r = torch.native_batch_norm(x, gamma, beta, None, None, True, 0.0, eps)
            return y, Scale(r.view(channels), _shape(gamma, channels))
        if self.kind == "layer_norm":
            y, _, r = torch.native_layer_norm(x, given["normalized_shape"], gamma, beta, eps)
            return y, Scale(r, gamma)
        if self.kind in ("group_norm", "instance_norm"):
            if given.get("running_var") is not None and not given["use_input_stats"]:
                r = (given["running_var"] + eps).rsqrt().view(channels)
                return func(*args, **kwargs), Scale(r, _shape(gamma, channels))
            n, c = x.shape[:2]
            groups = given.get("num_groups", c)
            y, _, r = torch.native_group_norm(x.contiguous(), gamma, beta, n, c, x[0, 0].numel(), groups, eps)
            r = r.repeat_interleave(c // groups, dim=1).view(n, c, *channels[2:])
            return y, Scale(r, _shape(gamma, channels))
        y = func(*args, **kwargs)
        if self.kind == "rms_norm":
            axes = tuple(range(-len(given["normalized_shape"]), 0))
            eps = torch.finfo(x.dtype).eps if eps is None else eps
            return y, Scale((x.square().mean(axes, keepdim=True) + eps).rsqrt(), gamma)
        length = torch.linalg.vector_norm(x, ord=given["p"], dim=given["dim"], keepdim=True)
        return y, Scale(length.clamp_min(eps).reciprocal(), None)

    def replay(self, run: Replay, saved: Any, func: Func, args: Args, kwargs: Kwargs) -> Any:
        x, edges = args[0], run.view.edges
        if edges == 0:
            return run.alias(x)
        scale: Tensor | None
        if run.view.own_flow and run.on_path(x):
            return self._by_own_flow(run, x, arguments(self.kind, func, args, kwargs))
        if saved is not None:
            r = run.match(power(saved.r.to(x.dtype), edges), x)
            scale = r if saved.gamma is None else r * power(saved.gamma.to(x.dtype), edges)
        else:
            scale = self._data_free(run, x, arguments(self.kind, func, args, kwargs))
        return run.alias(x) if scale is None else run.rescale(run.follow(x * scale, x))

    def _by_own_flow(self, run: Replay, x: Tensor, given: dict[str, Any]) -> Tensor:
        """γ^edges · x / mean(x), with a constant mean over the axes of the layer's statistics.

        Group norm and others that share statistics between channels, or have none, go channel by channel too.
        """
        gamma = given.get("weight")  # |γ|^edges already
        if self.kind in ("layer_norm", "rms_norm"):
            over = tuple(range(-len(given["normalized_shape"]), 0))
        else:
            over = tuple(axis for axis in range(x.dim()) if axis != 1)
            gamma = _shape(gamma, [1, -1] + [1] * (x.dim() - 2))
        mean = x.detach().mean(over, keepdim=True)
        scale = torch.where(mean > 0, mean.reciprocal(), 0.0)  # no flow, nothing to scale
        return run.follow_unscaled(x * (scale if gamma is None else scale * gamma), x)

    def _data_free(self, run: Replay, x: Tensor, given: dict[str, Any]) -> Tensor | None:
        """γ over the stored σ; γ alone if none is stored: without data a layer norm has no σ."""
        gamma = given.get("weight")  # |γ|^edges already: the view has been applied to it
        if self.kind in ("layer_norm", "rms_norm"):
            return gamma
        channels = [1, -1] + [1] * (x.dim() - 2)
        scale = _shape(gamma, channels)
        if given.get("running_var") is not None:
            variance = given["running_var"].view(channels)
        elif self.kind == "batch_norm" and not run.on_path(x):
            # weight standardisation: σ² of the weights is their mean square, and x is |θ|^edges
            square = x if run.view.edges == 2 else x.square()
            variance = square.detach().mean([0, *range(2, x.dim())], keepdim=True)
        else:
            return scale
        r = power((variance + given["eps"]).rsqrt(), run.view.edges)
        return r if scale is None else r * scale


def _shape(gamma: Tensor | None, shape: list[int]) -> Tensor | None:
    return None if gamma is None else gamma.view(shape)


@dataclass(frozen=True)
class Statistic(Rule):
    """σ, σ² or a norm that a model computes by hand: a constant scale on the paths, an edge like γ/σ."""

    def record(self, func: Func, args: Args, kwargs: Kwargs, norm: Norm) -> Any:
        y = func(*args, **kwargs)
        return y, y

    def replay(self, run: Replay, saved: Any, func: Func, args: Args, kwargs: Kwargs) -> Any:
        if not run.on_path(args[0]):
            return func(*args, **kwargs)
        output = func(*args, **kwargs)  # for its shape, which on one row is smaller than the recorded one
        likes = output if isinstance(output, tuple) else (output,)
        if saved is None or run.view.edges == 0:
            found = tuple(torch.ones_like(like) for like in likes)
        else:
            parts = saved if isinstance(saved, tuple) else (saved,)
            found = tuple(run.match(power(p.to(like.dtype), run.view.edges), like) for p, like in zip(parts, likes))
        return found if isinstance(output, tuple) else found[0]
