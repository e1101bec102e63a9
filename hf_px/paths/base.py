"""Rule: what to record of an operation and how to replay it; and one form for the many spellings of a call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from .record_replay import Replay

Norm = Literal["batch", "running"]
Func = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class Rule:
    def record(self, func: Func, args: Args, kwargs: Kwargs, norm: Norm) -> Any:
        """(output, data that replay needs)."""
        raise NotImplementedError

    def replay(self, run: Replay, saved: Any, func: Func, args: Args, kwargs: Kwargs) -> Any:
        """The output on the paths; `saved` is None if no pass was recorded."""
        raise NotImplementedError


@functools.cache
def operation(func: Func) -> str:
    """One name for x.relu_(), torch.relu(x) and F.relu(x): relu."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":  # x.T, x.mT, x.data
        return "get:" + getattr(getattr(func, "__self__", None), "__name__", "?")
    if name.startswith("__") and name.endswith("__"):
        return name
    return name.rstrip("_").lstrip("_")


def positional(args: Args, kwargs: Kwargs | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """F.linear(input=x, weight=w) as F.linear(x, weight=w): rules find x in the first place."""
    kwargs = dict(kwargs or {})
    for name in ("input", "self", "query"):
        if not args and name in kwargs:
            return (kwargs.pop(name),), kwargs
    return args, kwargs


def in_place(func: Func, args: Args, kwargs: Kwargs) -> bool:
    name = getattr(func, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        return True
    return bool(kwargs.get("inplace", False))


def per_dimension(value: Any, dims: int) -> list[int]:
    """A size as pooling takes it, 3 or (3,) or (3, 5), with one number for each dimension."""
    if isinstance(value, int):
        return [value] * dims
    return list(value) * (dims if len(value) == 1 else 1)


SIGNATURES = {
    name: inspect.signature(getattr(F, name))
    for name in ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "normalize",
                 "multi_head_attention_forward")
}  # fmt: skip


def arguments(name: str, func: Func, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    if func is torch.batch_norm:  # the call below F.batch_norm has another order of arguments and a backend flag
        x, weight, bias, mean, var, training, momentum, eps, _ = args
        args = (x, mean, var, weight, bias, training, momentum, eps)
    elif func in (torch.layer_norm, torch.group_norm):
        args = args[:5]
        kwargs = {key: value for key, value in kwargs.items() if not key.startswith("cudnn")}
    bound = SIGNATURES[name].bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)
