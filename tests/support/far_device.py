"""An emulated device that is not the CPU, `torch.device("far:0")`: no machine of this project has a GPU.

Each operation on a tensor of the device runs on the CPU tensor inside it. What a GPU refuses is refused here too: a CPU
tensor of one or more dimensions that meets one of the device, a CPU generator for draws on the device, `.numpy()`.
It does not show what depends on other kernels: speed, memory, streams, rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

NAME = "far"
_MOVES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}  # these may take tensors of two devices
# torch makes these by a tensor of no size that it resizes, which a wrapper cannot be
_RESIZED = ("arange", "arange.start", "arange.start_step", "linspace", "eye", "eye.m", "randperm")


@cache
def far() -> torch.device:
    """The device. autograd counts devices at the first backward pass of a process: this must come before it."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip(f"torch {torch.__version__} cannot emulate a device in Python")
    backend_registration._setup_privateuseone_for_python_backend(NAME, _Module())
    _library("_").fallback(_made, "PrivateUse1")
    for name in _RESIZED:
        packet, _, overload = name.partition(".")
        operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
        _library("aten").impl(name, partial(_made, operation), "PrivateUse1")
    return torch.device(NAME, 0)


@contextmanager
def emulated() -> Iterator[None]:
    """The device, and what torch does not let a backend in Python do: torch.tensor, generators, synchronize."""
    import timm.utils.model_ema

    far()
    with pytest.MonkeyPatch.context() as patch, _Constructors():
        patch.setattr(torch.accelerator, "synchronize", lambda device=None: None)
        patch.setattr(timm.utils.model_ema, "torch", _Torch())
        yield


class _Constructors(TorchFunctionMode):
    """torch.tensor(data, device="far:0"): made on the CPU, then moved."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and device is not None and torch.device(device).type == NAME:
            return func(*args, **{**kwargs, "device": "cpu"}).to(device)
        return func(*args, **kwargs)


class _Torch:
    """torch, with a generator on any device: timm's average makes one, for rounding to bfloat16."""

    def __getattr__(self, name: str) -> Any:
        return (lambda device: torch.Generator()) if name == "Generator" else getattr(torch, name)


@cache
def _library(namespace: str) -> torch.library.Library:
    return torch.library.Library(namespace, "IMPL")  # kept: what it registers goes when it does


class FarTensor(Tensor):
    """A tensor of the device; `near` is the CPU tensor that holds its values."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> FarTensor:
        return Tensor._make_wrapper_subclass(
            cls, near.shape, strides=near.stride(), storage_offset=near.storage_offset(), dtype=near.dtype,
            layout=near.layout, device=f"{NAME}:0",
        )  # fmt: skip

    def __init__(self, near: Tensor) -> None:
        self.near = near

    def __repr__(self, **_: Any) -> str:
        return f"FarTensor({self.near})"

    def data_ptr(self) -> int:  # tells tied tensors from others, as on a real device
        return self.near.data_ptr()

    def untyped_storage(self) -> Any:
        return self.near.untyped_storage()

    def tolist(self) -> Any:  # torch copies from any device, but not from a subclass
        return self.near.tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> FarTensor:  # torch would copy a storage that is not there
        if id(self) not in memo:
            found = memo[id(self)] = FarTensor(self.near.clone()).requires_grad_(self.requires_grad)
            found._is_param = getattr(self, "_is_param", False)  # type: ignore[attr-defined]
            found.grad = None if self.grad is None else FarTensor(self.grad.near.clone())  # type: ignore[attr-defined]
        return memo[id(self)]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves, tree = tree_flatten((args, kwargs))
        _check(func, leaves, kwargs.get("generator"))
        near_args, near_kwargs = tree_unflatten([x.near if isinstance(x, FarTensor) else x for x in leaves], tree)
        target = near_kwargs.get("device")
        if target is not None:
            near_kwargs["device"] = "cpu"
        out = func(*near_args, **near_kwargs)
        if target is not None and torch.device(target).type != NAME:
            return out
        found = _wrapped(out) if isinstance(out, Tensor) else tree_map_only(Tensor, _wrapped, out)
        if not _has_aliases(func):
            return found
        for tensor in leaves:
            assert not isinstance(tensor, FarTensor) or tensor.shape == tensor.near.shape, f"{func} resized a tensor"
        return return_and_correct_aliasing(func, args, kwargs, found)


def _check(func: Any, leaves: list[Any], generator: torch.Generator | None) -> None:
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.device.type != NAME and leaf.dim() and func not in _MOVES:
            raise RuntimeError(f"{func}: a CPU tensor of shape {tuple(leaf.shape)} meets tensors on {NAME}:0")
    if generator is not None:
        raise RuntimeError(f"{func}: expected a generator on {NAME}:0, not on the {generator.device}")


def _wrapped(near: Tensor) -> FarTensor:
    # forward derivatives have zeros without memory
    return FarTensor(torch.zeros(near.shape, dtype=near.dtype) if near._is_zerotensor() else near)


@cache
def _has_aliases(func: Any) -> bool:
    """Does it write to an argument, or return a view of one?"""
    return any(part.alias_info for part in [*func._schema.arguments, *func._schema.returns])


def _made(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Operations without a tensor of the device among their arguments, as torch.zeros(3, device="far")."""
    return FarTensor.__torch_dispatch__(func, (), args, {**kwargs, "device": f"{NAME}:0"})


class _Module:
    """torch.far: draws on the device come from the CPU's generator."""

    def __getattr__(self, name: str) -> Any:
        # not available: else torch would prefer it to the CPU in all tests that follow
        answers = {"is_initialized": True, "is_available": False, "current_device": 0, "_is_in_bad_fork": False}
        answers |= {"manual_seed_all": None, "device_count": 1, "empty_cache": None}
        if name in answers:
            return lambda *_: answers[name]
        raise AttributeError(name)

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)
