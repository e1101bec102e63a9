"""Iter-SNIP: s = |(θ ⊙ M) ⊙ ∂L/∂(θ ⊙ M)|; FORCE: s = |θ ⊙ ∂L/∂(θ ⊙ M)|, so that a pruned weight may return.

de Jorge et al., Progressive Skeletonization: Trimming more fat from a network at initialization, ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..core.batches import Batches
from ..core.forward import Loss, cross_entropy, gradients, undisturbed
from ..core.mask import MaskedWeights
from ..core.registry import Scores, scorer

_PAPER = "de Jorge et al., ICLR 2021"


@scorer("iter-snip", summary="|(θ⊙M) ⊙ ∂L/∂(θ⊙M)|", needs="labels", rounds=100, paper=_PAPER)
def iter_snip(
    model: nn.Module,
    weights: MaskedWeights,
    batches: Batches,
    *,
    generator: torch.Generator,
    loss: Loss = cross_entropy,
) -> Scores:
    return _saliency(model, weights, weights, batches, loss)


@scorer("force", summary="|θ ⊙ ∂L/∂(θ⊙M)|", needs="labels", rounds=100, paper=_PAPER, revives=True)
def force(
    model: nn.Module,
    weights: MaskedWeights,
    batches: Batches,
    *,
    generator: torch.Generator,
    loss: Loss = cross_entropy,
) -> Scores:
    # dense θ is in the model; the gradient is that of the pruned network
    return _saliency(model, weights.mask.tensors_of(model), weights, batches, loss)


def _saliency(
    model: nn.Module, theta: Mapping[str, Tensor], weights: MaskedWeights, batches: Batches, loss: Loss
) -> Scores:
    # the authors draw new samples in every round; here each round sees all batches, summed with their sign
    with undisturbed(model, batch_statistics=True):
        gradient = batches.sum(lambda batch: gradients(model, weights, batch, loss), like=weights)
    return {name: (w.detach() * gradient[name]).abs() for name, w in theta.items()}
