"""SNIP: s = |θ ⊙ ∂L/∂θ|, the signed gradient summed over batches first; Iter-SNIP: the same in many rounds.

Lee et al., SNIP: Single-shot Network Pruning based on Connection Sensitivity, ICLR 2019; de Jorge et al., Progressive
Skeletonization: Trimming more fat from a network at initialization, ICLR 2021.
"""

from __future__ import annotations

from torch import Generator, nn

from ..core.batches import Batches
from ..core.forward import Loss, cross_entropy, gradients
from ..core.mask import MaskedWeights
from ..core.registry import Scores, scorer


@scorer("iter-snip", summary="|(θ⊙M) ⊙ ∂L/∂(θ⊙M)|", needs="labels", rounds=100, paper="de Jorge et al., ICLR 2021")
@scorer("snip", summary="|θ ⊙ ∂L/∂θ|", needs="labels", rounds=1, paper="Lee et al., ICLR 2019")
def snip(
    model: nn.Module, weights: MaskedWeights, batches: Batches, *, generator: Generator, loss: Loss = cross_entropy
) -> Scores:
    total = gradients(model, weights, batches, loss)
    return {name: (w * total[name]).abs() for name, w in weights.items()}
