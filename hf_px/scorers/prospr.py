"""ProsPR: s = |∂L(θ_k)/∂m| at m = 1, with θ_0 = θ ⊙ m and θ_{i+1} = θ_i - η v_i, v_i = μ v_{i-1} + ∂L/∂θ_i.

The derivative runs through all k steps of training: a meta-gradient.

Alizadeh et al., Prospect Pruning: Finding Trainable Weights at Initialization using Meta-Gradients, ICLR 2022.
"""

from __future__ import annotations

from itertools import cycle, islice

import torch
from torch import nn

from ..core.batches import Batches
from ..core.forward import Loss, call, cross_entropy, derivatives, twice_differentiable, undisturbed
from ..core.mask import MaskedWeights
from ..core.registry import Scores, scorer


@scorer(
    "prospr", summary="|∂L/∂m| after k training steps", needs="labels", rounds=1, paper="Alizadeh et al., ICLR 2022"
)
def prospr(
    model: nn.Module,
    weights: MaskedWeights,
    batches: Batches,
    *,
    generator: torch.Generator,
    loss: Loss = cross_entropy,
    steps: int = 3,
    lr: float = 0.1,
    momentum: float = 0.0,
) -> Scores:
    if steps < 0:
        raise ValueError(f"prospr: steps is {steps}; it counts the training steps to look ahead")
    # step i trains on batch i, and the batch after the last step gives the loss; few batches are repeated. Every
    # process uses the same batches, since each step needs the one before
    sequence = list(islice(cycle(batches), steps + 1))
    if not sequence:
        raise ValueError("`batches` is empty; pass at least one batch of inputs")
    m = {name: torch.ones_like(w).requires_grad_() for name, w in weights.items()}
    theta = {name: w * m[name] for name, w in weights.items()}
    # the other parameters are trained too, as they will be after pruning
    covered = {id(p) for p in weights.mask.tensors_of(model).values()}
    for name, p in model.named_parameters():
        if id(p) not in covered and p.is_floating_point():
            theta[name] = p.detach().requires_grad_()
    velocity = {name: torch.zeros_like(w) for name, w in theta.items()}
    with undisturbed(model, batch_statistics=True), twice_differentiable():
        for batch in sequence[:-1]:
            slopes = derivatives(loss(call(model, theta, batch), batch.labels), theta, create_graph=True)
            for name, bits in weights.mask.bits.items():
                slopes[name] = slopes[name] * bits  # weights that are already pruned do not train
            velocity = {name: momentum * velocity[name] + slope for name, slope in slopes.items()}
            theta = {name: w - lr * velocity[name] for name, w in theta.items()}
        final = derivatives(loss(call(model, theta, sequence[-1]), sequence[-1].labels), m)
    return {name: d.abs() for name, d in final.items()}
