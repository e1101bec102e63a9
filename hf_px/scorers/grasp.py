"""GraSP: s = θ ⊙ Hg, with g = Σ_b ∂L_b/∂θ, H = Σ_b ∂²L_b/∂θ² and L on logits divided by a temperature.

Removing a weight changes ‖g‖² by -2 θ ⊙ Hg to first order: a low score means that the gradient grows
without the weight. The highest scores are kept, with their sign.

Wang et al., Picking Winning Tickets Before Training by Preserving Gradient Flow, ICLR 2020.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core.batches import Batch, Batches
from ..core.forward import Loss, call, cross_entropy, derivatives, gradients, twice_differentiable, undisturbed
from ..core.mask import MaskedWeights
from ..core.registry import Scores, scorer


@scorer("grasp", summary="θ ⊙ Hg, signed", needs="labels", rounds=1, paper="Wang et al., ICLR 2020")
def grasp(
    model: nn.Module,
    weights: MaskedWeights,
    batches: Batches,
    *,
    generator: torch.Generator,
    loss: Loss = cross_entropy,
    temperature: float = 200.0,
) -> Scores:
    if not temperature > 0:
        raise ValueError(f"grasp: temperature is {temperature}; it divides the logits, so it must be positive")

    def cooled(logits: Tensor, labels: Any) -> Tensor:
        return loss(logits / temperature, labels)

    def product(batch: Batch) -> dict[str, Tensor]:
        leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
        slopes = derivatives(cooled(call(model, leaves, batch), batch.labels), leaves, create_graph=True)
        along = torch.stack([(slopes[name] * g[name].to(w.dtype)).sum() for name, w in leaves.items()]).sum()
        return derivatives(along, leaves)

    with undisturbed(model, batch_statistics=True), twice_differentiable():
        # g of all batches first: per batch it would be Σ H_b g_b, without the terms between batches
        g = gradients(model, weights, batches, cooled)
        hg = batches.sum(product, like=weights)
    return {name: w * hg[name] for name, w in weights.items()}
