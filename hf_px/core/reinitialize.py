"""θ ~ Kaiming: new random weights for a network, from a generator and the same on every device."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def kaiming(weights: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """New values of each weight, drawn in order of name."""
    # drawn on the CPU, so that every device gets the same values
    empty = {name: torch.empty(w.shape, dtype=w.dtype) for name, w in sorted(weights.items())}
    return {n: nn.init.kaiming_normal_(t, generator=generator).to(weights[n].device) for n, t in empty.items()}


def fresh_other_parameters(model: nn.Module, redrawn: Collection[str]) -> dict[str, Tensor]:
    """Initial values of the parameters beside redrawn weights: 1 and 0 for normalisation, 0 for biases.

    A trained or zero-initialised scale would dominate its branch. Tokens and excluded tensors keep the model's values
    and are not in the result.
    """
    first_names = {name for name, _ in model.named_parameters()}  # a tied tensor is listed once
    anew = {}
    for prefix, module in model.named_modules():
        own = {f"{prefix}.{local}" if prefix else local: (local, p) for local, p in module._parameters.items()}
        beside = any(name in redrawn for name in own)
        for name, (local, p) in own.items():
            if p is None or name not in first_names:
                continue
            if isinstance(module, _NORMS):
                anew[name] = torch.ones_like(p) if local == "weight" else torch.zeros_like(p)
            elif beside and local in ("bias", "in_proj_bias"):
                anew[name] = torch.zeros_like(p)
    return anew


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal values, also drawn on the CPU."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
