"""check_visible: compare the operations that torch executes with those that a TorchFunctionMode sees.

Scripted code and gradient checkpointing escape the modes of record_replay.py, and a gate that is not intercepted would
count as a linear operation. So the model is run once on one sample, before any work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..core.batches import Batch
from ..core.errors import UnsupportedModelError
from ..core.forward import call, undisturbed


class _Shown(TorchFunctionMode):
    depth = 0

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.depth += 1
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.depth -= 1


class _Executed(TorchDispatchMode):
    def __init__(self, shown: _Shown) -> None:
        super().__init__()
        self.shown = shown
        self.hidden: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.shown.depth and "detach" not in str(func):
            self.hidden.append(str(func))
        return func(*args, **(kwargs or {}))


def check_visible(model: nn.Module, batch: Batch) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedModelError(
                f"{name or 'the model'} is scripted; prune the Python module, script it afterwards"
            )
        for flag in ("grad_checkpointing", "gradient_checkpointing"):
            if getattr(module, flag, False) is True:
                raise UnsupportedModelError(
                    f"{name or 'the model'}: gradient checkpointing reruns code that cannot be intercepted; turn it "
                    "off to prune "
                    "(timm: set_grad_checkpointing(False), transformers: gradient_checkpointing_disable())"
                )
    shown = _Shown()
    with undisturbed(model), torch.no_grad(), _Executed(shown) as executed, shown:
        call(model, {}, batch.row())
    if executed.hidden:
        raise UnsupportedModelError(
            f"{type(model).__name__} runs {executed.hidden[0]} where Python cannot intercept it (scripted or compiled "
            "code?), so its gates cannot be recorded"
        )
