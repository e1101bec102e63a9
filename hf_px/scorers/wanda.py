"""Wanda: s = |θ| · ‖x‖, with the norm of the input that each weight of a layer multiplies.

The units of ‖x‖ differ between layers, so scores are divided by their layer's mean. The paper compares within a layer:
scope "layer" or "erk".
Sun et al., A Simple and Effective Pruning Approach for Large Language Models, ICLR 2024.
"""

from __future__ import annotations

from torch import Generator, nn

from ..core.batches import Batches
from ..core.input_moments import scores_by_layer
from ..core.mask import MaskedWeights
from ..core.registry import Scores, scorer


@scorer("wanda", summary="|θ| · ‖x‖, by layer", needs="inputs", rounds=1, paper="Sun et al., ICLR 2024")
def wanda(model: nn.Module, weights: MaskedWeights, batches: Batches, *, generator: Generator) -> Scores:
    return scores_by_layer(model, weights, batches, lambda own, gram: own.abs() * gram.diagonal.sqrt())
