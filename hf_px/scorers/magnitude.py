"""Magnitude: s = |θ|.

Han et al., Learning both Weights and Connections for Efficient Neural Networks, NeurIPS 2015.
"""

from __future__ import annotations

import torch
from torch import nn

from ..core.batches import Batches
from ..core.mask import MaskedWeights
from ..core.registry import Scores, scorer


@scorer("magnitude", summary="|θ|", needs="weights", rounds=1, paper="Han et al., NeurIPS 2015")
def magnitude(
    model: nn.Module, weights: MaskedWeights, batches: Batches | None, *, generator: torch.Generator
) -> Scores:
    return {name: w.abs() for name, w in weights.items()}
