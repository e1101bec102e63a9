"""OBS by layer: s = θ² / [H⁻¹]_jj, H = E[x xᵀ] + λ: the error of the layer's output if θ_j goes and its row adapts.

The errors of different layers are in different units, so scores are divided by their layer's mean; the method was made
to compare within a layer: scope "layer" or "erk".
Hassibi and Stork, Second Order Derivatives for Network Pruning: Optimal Brain Surgeon, NeurIPS 1992.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from ..core.batches import Batches
from ..core.input_moments import Gram, scores_by_layer
from ..core.mask import MaskedWeights
from ..core.registry import Scores, scorer

RIDGE = 0.03  # λ, in parts of the mean of the diagonal of E[x xᵀ]


@scorer("obs", summary="θ² / [(E[x xᵀ] + λ)⁻¹]_jj", needs="inputs", rounds=1, paper="Hassibi and Stork, NeurIPS 1992")
def obs(model: nn.Module, weights: MaskedWeights, batches: Batches, *, generator: Generator) -> Scores:
    return scores_by_layer(model, weights, batches, lambda own, gram: own.square() / _inverse_diagonal(gram))


def _inverse_diagonal(gram: Gram) -> Tensor:
    """[H⁻¹]_jj; infinite for a layer without any input, whose weights change nothing."""
    scale = gram.diagonal.mean()
    if not scale > 0:
        return torch.full_like(gram.diagonal, torch.inf)
    matrix = gram.part(torch.arange(len(gram.diagonal), device=scale.device)) / scale
    matrix.diagonal().add_(RIDGE)
    return torch.cholesky_inverse(torch.linalg.cholesky(matrix)).diagonal() / scale
