"""One rule per family of non-linear operations: what to record on a real forward pass, how to replay it.

gate        y = a · x with a = y/x (at 0 the derivative), for activations with f(0) = 0. For ReLU this is the
            paper's indicator; for the others it extends the theory.
pool        max-pooling hands on the recorded winner; with every gate open it sums its window.
normalise   y = γ/σ · x; centring and bias are additive terms and are dropped.
attend      attention weights are gates of the values; queries and keys only steer them.
freeze      softmax, sigmoid: gates in [0, 1] computed from the data. Weights that only steer a frozen
            gate (queries, keys, squeeze-and-excitation) lie on no path: their path score is zero.
statistic   variances and norms that a model computes by hand: scales, as in normalise.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .views import power

if TYPE_CHECKING:
    from .tape import Replay

Norm = Literal["batch", "running"]


@functools.cache
def operation(func: Callable[..., Any]) -> str:
    """One name for x.relu_(), torch.relu(x) and F.relu(x): relu."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":  # x.T, x.mT, x.data
        return "get:" + getattr(getattr(func, "__self__", None), "__name__", "?")
    if name.startswith("__") and name.endswith("__"):
        return name
    return name.rstrip("_").lstrip("_")


def positional(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """F.linear(input=x, weight=w) as F.linear(x, weight=w): rules find x at the same place."""
    kwargs = dict(kwargs or {})
    for name in ("input", "self", "query"):
        if not args and name in kwargs:
            return (kwargs.pop(name),), kwargs
    return args, kwargs


def in_place(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        return True
    return bool(kwargs.get("inplace", False))


@dataclass(frozen=True)
class Sign:
    """y > 0, kept as y itself for as long as nobody writes to it."""

    y: Tensor
    version: int

    @property
    def intact(self) -> bool:
        return self.y._version == self.version

    def of(self, x: Tensor) -> Tensor:
        return self.y if self.y.dtype == x.dtype else self.y.to(x.dtype)


class Rule:
    def record(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], norm: Norm) -> Any:
        """(output, what replay needs)."""
        raise NotImplementedError

    def replay(
        self, run: Replay, saved: Any, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The output on the paths; `saved` is None where no pass was recorded."""
        raise NotImplementedError


@dataclass(frozen=True)
class Gate(Rule):
    at_zero: float  # derivative at 0, where y/x is undefined
    binary: bool = False  # ReLU: a in {0, 1} is y > 0

    def record(self, func, args, kwargs, norm):
        x = args[0]
        if self.binary:  # y is in memory anyway, and its kernel for "where y > 0" is the fastest there is
            y = func(*args, **kwargs)
            return y, Sign(y, y._version)
        if in_place(func, args, kwargs):
            before = x.clone()
            y = func(*args, **kwargs)
            x = before
        else:
            y = func(*args, **kwargs)
        return y, torch.where(x == 0, self.at_zero, y / x)

    def replay(self, run, saved, func, args, kwargs):
        x = args[0]
        if run.view.gates == 0:
            return run.alias(x)
        where = in_place(func, args, kwargs)
        if not self.binary:
            gate = power(saved, run.view.gates).to(x.dtype)
            return run.own(x).mul_(gate) if where else run.follow(x * gate, x)
        if where and not torch.is_grad_enabled():
            x = run.own(x)
            return torch.ops.aten.threshold_backward.grad_input(x, saved.of(x), 0.0, grad_input=x)
        gated = torch.ops.aten.threshold_backward(x, saved.of(x), 0.0)
        return run.own(x).copy_(gated) if where else run.follow(gated, x)


@dataclass(frozen=True)
class Clamp(Rule):
    """torch.clamp as an activation: a gate if 0 lies between its ends; otherwise no rule."""

    def record(self, func, args, kwargs, norm):
        low, high = _bounds(args, kwargs)
        if not low <= 0 <= high:
            return func(*args, **kwargs), None
        x = args[0].clone() if in_place(func, args, kwargs) else args[0]
        y = func(*args, **kwargs)
        return y, torch.where(x == 0, float(low < 0 < high), y / x)

    def replay(self, run, saved, func, args, kwargs):
        low, high = _bounds(args, kwargs)
        if not run.on_path(args[0]):
            return func(*args, **kwargs)
        if not low <= 0 <= high:
            return run.nonlinear(func, args, kwargs)
        return Gate(0.0).replay(run, saved, func, args, kwargs)


def _bounds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[float, float]:
    low = kwargs.get("min", kwargs.get("min_val", args[1] if len(args) > 1 else None))
    high = kwargs.get("max", kwargs.get("max_val", args[2] if len(args) > 2 else None))
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        return 1.0, 0.0  # bounds that are tensors: no rule
    return -torch.inf if low is None else float(low), torch.inf if high is None else float(high)


@dataclass(frozen=True)
class MaxPool(Rule):
    dims: int
    adaptive: bool = False

    def record(self, func, args, kwargs, norm):
        name = f"{'adaptive_' if self.adaptive else ''}max_pool{self.dims}d"
        return getattr(F, name)(*args, **{**kwargs, "return_indices": True})

    def replay(self, run, saved, func, args, kwargs):
        x = args[0]
        if run.view.gates == 0:  # all of the window's paths go through
            total = self._sum_adaptive(*args, **kwargs) if self.adaptive else self._sum(*args, **kwargs)
            return run.follow(total, x)
        winners = x.flatten(-self.dims).gather(-1, saved.flatten(-self.dims)).view(saved.shape)
        # in the layout of the recorded pass: mixing layouts with later gates would cost more than the convolutions
        return run.follow(torch.empty_like(saved, dtype=x.dtype).copy_(winners), x)

    def _sum_adaptive(self, x: Tensor, output_size: Any, return_indices: bool = False) -> Tensor:
        total = getattr(F, f"adaptive_avg_pool{self.dims}d")(x, output_size)
        for axis in range(-self.dims, 0):
            n, out = x.shape[axis], total.shape[axis]
            windows = [-(-(i + 1) * n // out) - i * n // out for i in range(out)]
            total = total * total.new_tensor(windows).view([-1] + [1] * (-axis - 1))
        return total

    def _sum(self, x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False) -> Tensor:
        size, stride, padding, dilation = (_each(v, self.dims) for v in (kernel_size, stride, padding, dilation))
        stride = stride or size
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


def _each(value: Any, dims: int) -> list[int]:
    if value is None or isinstance(value, int):
        return [] if value is None else [value] * dims
    return list(value) * (dims if len(value) == 1 else 1)


@dataclass(frozen=True)
class Scale:
    """What a normalisation did: y = γ · r · (x - μ) + β, with r = 1/σ shaped to broadcast against x."""

    r: Tensor
    gamma: Tensor | None


@dataclass(frozen=True)
class Normalise(Rule):
    kind: Literal["batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "normalize"]

    def record(self, func, args, kwargs, norm):
        x, given = args[0], _arguments(self.kind, func, args, kwargs)
        gamma, beta, eps = given.get("weight"), given.get("bias"), given.get("eps")
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

    def replay(self, run, saved, func, args, kwargs):
        x, edges = args[0], run.view.edges
        if edges == 0:
            return run.alias(x)
        if saved is not None:
            r = run.match(power(saved.r.to(x.dtype), edges), x)
            scale = r if saved.gamma is None else r * power(saved.gamma.to(x.dtype), edges)
        else:
            scale = self._data_free(run, x, _arguments(self.kind, func, args, kwargs))
        return run.alias(x) if scale is None else run.settle(run.follow(x * scale, x))

    def _data_free(self, run: Replay, x: Tensor, given: dict[str, Any]) -> Tensor | None:
        """γ over the stored σ; where none is stored, γ alone: without data a layer norm has no σ."""
        gamma = given.get("weight")  # |γ|^edges already: the view has been applied to it
        if self.kind == "layer_norm" or self.kind == "rms_norm":
            return gamma
        channels = [1, -1] + [1] * (x.dim() - 2)
        scale = _shape(gamma, channels)
        if given.get("running_var") is not None:
            r = power((given["running_var"] + given["eps"]).rsqrt(), run.view.edges).view(channels)
            return r if scale is None else r * scale
        if self.kind == "batch_norm" and not run.on_path(x):
            # weight standardisation: σ² of the weights is their mean square, and x is |θ|^edges
            square = x if run.view.edges == 2 else x.square()
            r = (square.detach().mean([0, *range(2, x.dim())], keepdim=True) + given["eps"]).rsqrt()
            r = power(r, run.view.edges)
            return r if scale is None else r * scale
        return scale


def _shape(gamma: Tensor | None, shape: list[int]) -> Tensor | None:
    return None if gamma is None else gamma.view(shape)


_SIGNATURES = {
    name: inspect.signature(getattr(F, name))
    for name in ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "normalize",
                 "multi_head_attention_forward")
}  # fmt: skip


def _arguments(name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    if func is torch.batch_norm:  # the same call below F, in another order and with a backend flag
        x, weight, bias, mean, var, training, momentum, eps, _ = args
        args = (x, mean, var, weight, bias, training, momentum, eps)
    elif func in (torch.layer_norm, torch.group_norm):
        args = args[:5]
        kwargs = {key: value for key, value in kwargs.items() if not key.startswith("cudnn")}
    bound = _SIGNATURES[name].bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


@dataclass(frozen=True)
class Attend(Rule):
    """softmax(q·k/√d) · v, fused."""

    def record(self, func, args, kwargs, norm):
        q, k, v, mask, causal, scale, gqa = _sdpa_arguments(*args, **kwargs)
        if gqa:
            k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
            v = v.repeat_interleave(q.shape[-3] // v.shape[-3], -3)
        logits = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
        if causal:
            mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).tril()
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else logits + mask
        attention = logits.softmax(-1)
        return attention @ v, attention

    def replay(self, run, saved, func, args, kwargs):
        q, k, v, *_, gqa = _sdpa_arguments(*args, **kwargs)
        groups = q.shape[-3] // v.shape[-3] if gqa else 1
        if groups > 1:
            k, v = (run.follow(t.repeat_interleave(groups, -3), t) for t in (k, v))
        return run.settle(run.follow(run.mix(saved, q, k, v), v))


def _sdpa_arguments(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
) -> tuple[Any, ...]:
    return query, key, value, attn_mask, is_causal, scale, enable_gqa


@dataclass(frozen=True)
class MultiHead(Rule):
    """torch's own multi-head attention, which arrives as one call with all of its projections."""

    def record(self, func, args, kwargs, norm):
        given = _arguments("multi_head_attention_forward", func, args, kwargs)
        asked, averaged = given["need_weights"], given["average_attn_weights"]
        y, attention = func(**{**given, "need_weights": True, "average_attn_weights": False})
        shown = None if not asked else attention.mean(-3) if averaged else attention
        return (y, shown), attention

    def replay(self, run, saved, func, args, kwargs):
        given = _arguments("multi_head_attention_forward", func, args, kwargs)
        width = given["embed_dim_to_check"]
        if given["use_separate_proj_weight"]:
            projections = [given[f"{part}_proj_weight"] for part in "qkv"]
        else:
            projections = given["in_proj_weight"].split(width)
        q, k, v = (
            self._heads(given[part] @ weight.mT, given["num_heads"])
            for part, weight in zip(("query", "key", "value"), projections)
        )
        mixed = run.mix(saved, q, k, v)
        mixed = mixed.permute(2, 0, 1, 3) if mixed.dim() == 4 else mixed.permute(1, 0, 2)
        y = mixed.flatten(-2) @ given["out_proj_weight"].mT
        return run.settle(run.follow(y, given["value"])), None

    @staticmethod
    def _heads(x: Tensor, heads: int) -> Tensor:
        """(S, N, E) -> (N, H, S, d), or (S, E) -> (H, S, d)."""
        x = x.unflatten(-1, (heads, x.shape[-1] // heads))
        return x.permute(1, 2, 0, 3) if x.dim() == 4 else x.permute(1, 0, 2)


@dataclass(frozen=True)
class Freeze(Rule):
    """A gate in [0, 1] that the data computes: held as recorded, or open."""

    def record(self, func, args, kwargs, norm):
        y = func(*args, **kwargs)
        return y, y.clone() if in_place(func, args, kwargs) else y

    def replay(self, run, saved, func, args, kwargs):
        x = args[0]
        if not run.on_path(x):
            return func(*args, **kwargs)
        frozen = run.freeze(func, args, kwargs, saved)
        if in_place(func, args, kwargs):
            run.own(x).copy_(frozen)
            return run.follow(run.off_path(x), frozen)
        return frozen


@dataclass(frozen=True)
class Statistic(Rule):
    """σ, σ² or a norm by hand: a scale that is constant on the paths, and an edge like any γ/σ."""

    def record(self, func, args, kwargs, norm):
        y = func(*args, **kwargs)
        return y, y

    def replay(self, run, saved, func, args, kwargs):
        if not run.on_path(args[0]):
            return func(*args, **kwargs)
        if saved is None or run.view.edges == 0:
            like = func(*args, **kwargs)
            return tuple(torch.ones_like(part) for part in like) if isinstance(like, tuple) else torch.ones_like(like)
        parts = saved if isinstance(saved, tuple) else (saved,)
        found = [run.match(power(part.to(args[0].dtype), run.view.edges), args[0]) for part in parts]
        return tuple(found) if isinstance(saved, tuple) else found[0]


@dataclass(frozen=True)
class GatedUnit(Rule):
    """F.glu: a · sigmoid(b), the second half a frozen gate of the first."""

    def record(self, func, args, kwargs, norm):
        axis = kwargs.get("dim", args[1] if len(args) > 1 else -1)
        return func(*args, **kwargs), args[0].chunk(2, axis)[1].sigmoid()

    def replay(self, run, saved, func, args, kwargs):
        axis = kwargs.get("dim", args[1] if len(args) > 1 else -1)
        value = args[0].chunk(2, axis)[0]
        if run.view.gates:
            value = value * power(saved, run.view.gates).to(value.dtype)
        return run.follow(value, args[0])


RULES: dict[str, Rule] = {
    "relu": Gate(0.0, binary=True),
    "relu6": Gate(0.0), "hardtanh": Clamp(), "clamp": Clamp(), "clip": Clamp(), "clamp_min": Clamp(),
    "leaky_relu": Gate(1.0), "rrelu": Gate(1.0), "prelu": Gate(1.0), "elu": Gate(1.0), "celu": Gate(1.0),
    "selu": Gate(1.0507009873554805), "gelu": Gate(0.5), "silu": Gate(0.5), "mish": Gate(0.6),
    "hardswish": Gate(0.5), "tanh": Gate(1.0), "softsign": Gate(1.0), "tanhshrink": Gate(0.0),
    "hardshrink": Gate(0.0), "softshrink": Gate(0.0),
    "glu": GatedUnit(),
    "softmax": Freeze(), "sigmoid": Freeze(), "hardsigmoid": Freeze(), "softmin": Freeze(),
    "var": Statistic(), "std": Statistic(), "var_mean": Statistic(), "std_mean": Statistic(),
    "norm": Statistic(), "vector_norm": Statistic(), "linalg_vector_norm": Statistic(),
    "scaled_dot_product_attention": Attend(),
    "multi_head_attention_forward": MultiHead(),
    **{f"max_pool{d}d": MaxPool(d) for d in (1, 2, 3)},
    **{f"adaptive_max_pool{d}d": MaxPool(d, adaptive=True) for d in (1, 2, 3)},
    **{kind: Normalise(kind) for kind in
       ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "normalize")},
}  # fmt: skip
