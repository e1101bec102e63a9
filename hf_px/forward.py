"""f(x; θ ⊙ M): run a model on other weights than its own, and leave no trace in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from .batches import Batch

Loss = Callable[[Tensor, Tensor], Tensor]


@contextmanager
def undisturbed(model: nn.Module, batch_statistics: bool = False) -> Iterator[None]:
    """Dropout off, normalisation as asked, float32 that is float32; every flag as before on the way out."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        if batch_statistics:
            for module in model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.training = True
        # TF32 keeps 10 bits: too few to rank weights by
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        for module, training in flags:
            module.training = training


def call(model: nn.Module, weights: Mapping[str, Tensor], batch: Batch, x: Tensor | None = None) -> Tensor:
    """The model's output tensor on this batch, with `weights` in place of its own; buffers are copies."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    args, kwargs = batch.call_args(x)
    return output_tensor(functional_call(model, {**buffers, **weights}, args, kwargs))


def output_tensor(output: Any) -> Tensor:
    """The tensor to score by: logits where there are any, else the first thing the model returns."""
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "out", "last_hidden_state"):
        found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(found, Tensor):
            return found
    parts = list(output.values()) if isinstance(output, Mapping) else output
    for part in parts if isinstance(parts, (list, tuple)) else ():
        return output_tensor(part)
    raise TypeError(f"the model returned a {type(output).__name__} without a tensor to score by")


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy; in dense prediction label 255 means "ignore", as in Pascal VOC."""
    dense = labels.dim() > 1 and not labels.is_floating_point()
    return F.cross_entropy(logits.float() if logits.dtype.itemsize < 4 else logits, labels, ignore_index=255 if dense else -100)


def gradients(
    model: nn.Module, weights: Mapping[str, Tensor], batch: Batch, loss: Loss, create_graph: bool = False
) -> dict[str, Tensor]:
    """∂L/∂(θ ⊙ M) on one batch, for pruned weights too."""
    leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
    value = loss(call(model, leaves, batch), batch.labels)
    found = torch.autograd.grad(value, list(leaves.values()), create_graph=create_graph, allow_unused=True)
    return {name: torch.zeros_like(w) if g is None else g for (name, w), g in zip(leaves.items(), found)}
