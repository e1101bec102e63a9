"""Random: s ~ U[0, 1), independent of weights and data.

The baseline of Frankle et al., Pruning Neural Networks at Initialization: Why Are We Missing the Mark?, ICLR 2021.
"""

from __future__ import annotations

import torch
from torch import nn

from ..core.batches import Batches
from ..core.mask import MaskedWeights
from ..core.registry import Scores, scorer


@scorer("random", summary="uniform in [0, 1)", needs="weights", rounds=1, paper="Frankle et al., ICLR 2021")
def random(model: nn.Module, weights: MaskedWeights, batches: Batches | None, *, generator: torch.Generator) -> Scores:
    # on the CPU and in order of name: the same draws on every device. float64: float32 has only 2^24 values
    # between 0 and 1, and ties go to the first position
    return {
        name: torch.rand(w.shape, generator=generator, dtype=torch.float64).to(w.device)
        for name, w in sorted(weights.items())
    }
