"""Wanda: s = |θ| · ‖x‖, with the norm of the input that each weight of a layer multiplies.

The units of ‖x‖ differ between layers, so scores are divided by their layer's mean. The paper compares within a layer:
scope "layer" or "erk".
Sun et al., A Simple and Effective Pruning Approach for Large Language Models, ICLR 2024.
"""

from __future__ import annotations

import torch
from torch import Generator, nn

from ..core.batches import Batches
from ..core.forward import undisturbed
from ..core.input_moments import measure_inputs
from ..core.mask import MaskedWeights
from ..core.registry import Scores, scorer


@scorer("wanda", summary="|θ| · ‖x‖, by layer", needs="inputs", rounds=1, paper="Sun et al., ICLR 2024")
def wanda(model: nn.Module, weights: MaskedWeights, batches: Batches, *, generator: Generator) -> Scores:
    scores = {name: torch.zeros_like(w) for name, w in weights.items()}
    with undisturbed(model):
        moments = measure_inputs(model, dict(weights), batches.share(), batches.images())
    for (name, _), one in moments.items():
        for rows, gram in one.by_group(centred=False):
            own = weights[name][rows]
            scores[name][rows] = own.abs() * gram.diagonal.sqrt().view_as(own[0])
    return {name: s / s.mean().clamp_min(torch.finfo(s.dtype).tiny) for name, s in scores.items()}
