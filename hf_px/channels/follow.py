"""Units followed through one run of a network: an output channel has a label, which goes where its values go.

Movements of data (views, slices, concatenations) run on the labels as they run on the values. An elementwise operation
joins the units that it combines; a norm or softmax joins those that it normalises together; a matrix product of two
activations joins whole heads. What no rule covers pins its units: they are never removed.

The input of the run is nan, so each value that depends on the input is nan, and any other holds its constant. Linear
layers pass nan on only where a weight is not zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..core.batches import Batch
from ..core.forward import call_with, undisturbed
from .follow_rules import LINEAR, RULES, default, elementwise
from .labels import Run, Trail


def follow(model: nn.Module, batch: Batch) -> Trail:
    """Run the model on one image of nan, and return what became of its units."""
    row = batch.row()
    args, kwargs = row.call_args(torch.full_like(row.x, math.nan))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)  # the fused encoder layer has no rule
        with undisturbed(model), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), _module_names(model) as running:
            run = Run(model, buffers, running)
            with _Operations(run):
                out = call_with(model, buffers, args, kwargs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    for tensor in tree_leaves(out):
        if isinstance(tensor, Tensor):
            run.pin(tensor)
            run.trail.alive |= bool(tensor.isnan().any())
    return run.trail


class _Operations(TorchDispatchMode):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        run, kwargs, name = self.run, kwargs or {}, func._schema.name.removeprefix("aten::")
        if not any(isinstance(t, Tensor) and run.knows(t) for t in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        if name in LINEAR:
            return LINEAR[name](run, func, args, kwargs)
        out = func(*args, **kwargs)
        rule = RULES.get(name, elementwise if torch.Tag.pointwise in func.tags else default)
        rule(run, func, args, kwargs, out)
        return out


@contextmanager
def _module_names(model: nn.Module) -> Iterator[list[str]]:
    """Names of the modules that are running, innermost last."""
    names = {module: name for name, module in model.named_modules()}
    stack: list[str] = []
    enter = register_module_forward_pre_hook(lambda module, args: stack.append(names.get(module, "")))
    leave = register_module_forward_hook(lambda module, args, output: (stack.pop(), None)[1], always_call=True)
    try:
        yield stack
    finally:
        enter.remove()
        leave.remove()
