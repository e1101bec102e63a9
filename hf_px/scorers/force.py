"""FORCE: s = |θ ⊙ ∂L/∂(θ ⊙ M)|, so that a pruned weight may return. Iter-SNIP of the same paper is in snip.py.

de Jorge et al., Progressive Skeletonization: Trimming more fat from a network at initialization, ICLR 2021.
"""

from __future__ import annotations

from torch import Generator, nn

from ..core.batches import Batches
from ..core.forward import Loss, cross_entropy, gradients
from ..core.mask import MaskedWeights
from ..core.registry import Scores, scorer


@scorer(
    "force", summary="|θ ⊙ ∂L/∂(θ⊙M)|", needs="labels", rounds=100, paper="de Jorge et al., ICLR 2021", revives=True
)
def force(
    model: nn.Module, weights: MaskedWeights, batches: Batches, *, generator: Generator, loss: Loss = cross_entropy
) -> Scores:
    # the authors draw new samples in every round; here each round sees all batches, summed with their sign
    total = gradients(model, weights, batches, loss)
    # dense θ is in the model; the gradient is that of the pruned network
    return {name: (w.detach() * total[name]).abs() for name, w in weights.mask.tensors_of(model).items()}
