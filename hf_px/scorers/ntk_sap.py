"""NTK-SAP: s = |∂/∂M Σ_b ‖f(x_b; w_b ⊙ M) - f(x_b; (w_b + Δ_b) ⊙ M)‖²|, Δ ~ N(0, ε²).

Over Δ the norm is ε² times the trace of the NTK, to first order. Inputs x_b are Gaussian noise in the
shape of the batch, and w_b is drawn for every batch: neither data nor the model's own θ matter.

Wang et al., NTK-SAP: Improving neural network pruning by aligning training dynamics, ICLR 2023.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..core.batches import Batch, Batches
from ..core.forward import batch_statistics, call, derivatives, undisturbed
from ..core.mask import MaskedWeights
from ..core.registry import Scores, scorer
from ..core.reinitialize import fresh_other_parameters, kaiming, normal


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
    bits, rest = weights.mask.bits, fresh_other_parameters(model, weights)
    # its own generator for every call: rounds that share a generator still get new weights
    this_round = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=generator)))

    def gradient(batch: Batch) -> dict[str, Tensor]:
        draw = batch.seeded(this_round)
        x = normal(batch.x, draw)
        fresh = kaiming(weights, draw)
        moved = {name: w + epsilon * normal(w, draw) for name, w in fresh.items()}
        m = {name: bits[name].to(w).requires_grad_() for name, w in fresh.items()}
        masked, shifted = ({name: w * m[name] for name, w in side.items()} for side in (fresh, moved))
        # The paper leaves open: ε (0.01, as in the authors' experiments); BatchNorm (the statistics of f(x; w ⊙ M) on
        # this batch, held constant in both terms, since an NTK belongs to one function); other parameters (norms at 1
        # and 0, biases of redrawn layers at 0, as in a new network)
        still = {**rest, **batch_statistics(model, {**rest, **masked}, batch, x)}
        change = call(model, {**still, **masked}, batch, x) - call(model, {**still, **shifted}, batch, x)
        return derivatives(change.square().sum(), m)

    with undisturbed(model):
        total = batches.sum(gradient, like=weights)
    # ∂/∂M does not vanish where M = 0, but only FORCE lets a pruned weight return
    return {name: total[name].abs() * bits[name].to(total[name].device) for name in weights}
