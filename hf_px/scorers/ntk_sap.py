"""NTK-SAP: s = |∂/∂M Σ_b ‖f(x_b; w_b ⊙ M) - f(x_b; (w_b + Δ_b) ⊙ M)‖²|, Δ ~ N(0, ε²).

Over Δ the norm is ε² times the trace of the NTK, to first order. Inputs x_b are Gaussian noise in the
shape of the batch and w_b is drawn anew for every batch: neither data nor the model's own θ enters.

Wang et al., NTK-SAP: Improving neural network pruning by aligning training dynamics, ICLR 2023.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..batches import Batch, Batches
from ..forward import batch_statistics, call, derivatives, undisturbed
from ..mask import MaskedWeights
from ..registry import Scores, scorer

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@scorer(
    "ntk-sap",
    summary="|∂/∂M ‖f(x; w⊙M) - f(x; (w+Δ)⊙M)‖²|, w and x random",
    needs="shape",
    rounds=100,
    paper="Wang et al., ICLR 2023",
)
def ntk_sap(
    model: nn.Module, weights: MaskedWeights, batches: Batches, *, generator: torch.Generator, epsilon: float = 0.01
) -> Scores:
    if not epsilon > 0:
        raise ValueError(f"ntk-sap: epsilon is {epsilon}; without a perturbation every score is zero")
    bits, rest = weights.mask.bits, _built_anew(model, weights)
    # a draw of its own for every call: rounds that share a generator still see new weights
    this_round = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=generator)))

    def gradient(batch: Batch) -> dict[str, Tensor]:
        draw = batch.seeded(this_round)
        x = _normal(batch.x, draw)
        fresh = {name: _kaiming(w, draw) for name, w in sorted(weights.items())}
        moved = {name: w + epsilon * _normal(w, draw) for name, w in fresh.items()}
        m = {name: bits[name].to(w).requires_grad_() for name, w in fresh.items()}
        masked, shifted = ({name: w * m[name] for name, w in side.items()} for side in (fresh, moved))
        # The paper leaves open: ε (0.01, as in the authors' experiments); BatchNorm (the statistics of f(x; w ⊙ M) on
        # this batch, held constant in both terms: an NTK belongs to one function, not to one that drifts with Δ); other
        # parameters (norms start at 1 and 0, biases of redrawn layers at 0, as if built anew: a trained or
        # zero-initialised scale would rule its branch; the rest, tokens and excluded tensors too, is the model's own)
        still = {**rest, **batch_statistics(model, {**rest, **masked}, batch, x)}
        change = call(model, {**still, **masked}, batch, x) - call(model, {**still, **shifted}, batch, x)
        return derivatives(change.square().sum(), m)

    with undisturbed(model):
        total = batches.sum(gradient, like=weights)
    # ∂/∂M does not vanish where M = 0, but only FORCE lets a pruned weight bid
    return {name: total[name].abs() * bits[name].to(total[name].device) for name in weights}


def _built_anew(model: nn.Module, weights: MaskedWeights) -> dict[str, Tensor]:
    """1 and 0 for normalisation, 0 for the biases beside redrawn weights."""
    first_names = {name for name, _ in model.named_parameters()}  # a tied tensor goes in once
    anew = {}
    for prefix, module in model.named_modules():
        own = {f"{prefix}.{local}" if prefix else local: (local, p) for local, p in module._parameters.items()}
        redrawn = any(name in weights for name in own)
        for name, (local, p) in own.items():
            if p is None or name not in first_names:
                continue
            if isinstance(module, _NORMS):
                anew[name] = torch.ones_like(p) if local == "weight" else torch.zeros_like(p)
            elif redrawn and local in ("bias", "in_proj_bias"):
                anew[name] = torch.zeros_like(p)
    return anew


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    # on the CPU, so that every device sees the same draws
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)


def _kaiming(like: Tensor, generator: torch.Generator) -> Tensor:
    return nn.init.kaiming_normal_(torch.empty(like.shape, dtype=like.dtype), generator=generator).to(like.device)
