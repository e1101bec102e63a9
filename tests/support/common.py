"""What several tests need: a fingerprint of a model and of torch's random state, and real data."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def state_of(model: nn.Module) -> str:
    """Parameters, buffers, gradients, flags, hooks and torch's random state, bit for bit."""
    sha = hashlib.sha256()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        sha.update(f"{name} {tensor.requires_grad} {tensor.dtype} {tensor.device} {tensor.stride()}".encode())
        sha.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        sha.update(repr(tensor.grad).encode())
    for name, module in model.named_modules():
        hooks = len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks)
        sha.update(f"{name} {module.training} {hooks} {sorted(module.__dict__)}".encode())
    sha.update(torch.get_rng_state().numpy().tobytes())
    return sha.hexdigest()


def digits_batches(per_class: int = 10) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from hf_px.data import batches_of, digits, pruning_set

    train, _ = digits(32)
    return batches_of(*pruning_set(*train, per_class=per_class), batch_size=10 * per_class)
