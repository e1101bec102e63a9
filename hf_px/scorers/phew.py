"""PHEW: keep what biased random walks visit, P(i → o) ∝ |θ_oi|, from input to output and back, in order of first visit.

Patil and Dovrolis, PHEW: Constructing Sparse Networks that Learn Fast and Generalize Well Without Training Data,
ICML 2021.

A unit is one position of one channel, and a step uses one weight. Weights that no walk has visited rank below all
others, by |θ|: at low sparsity, walks alone would take too long to find the last weights.
"""

from __future__ import annotations

import torch
from torch import nn

from ..core.allocate import budget
from ..core.batches import Batches
from ..core.forward import undisturbed
from ..core.mask import MaskedWeights
from ..core.registry import Scores, scorer
from ..paths import ABSOLUTE, edge_weights, walk


@scorer(
    "phew",
    summary="order of first visit by walks, P ∝ |θ|",
    needs="shape",
    paths=True,
    rounds=1,
    paper="Patil and Dovrolis, ICML 2021",
)
def phew(
    model: nn.Module,
    weights: MaskedWeights,
    batches: Batches,
    *,
    generator: torch.Generator,
    density: float | None = None,
    walkers: int = 32,
    walks: int = 2048,
) -> Scores:
    """`walkers` walk at a time, alternately forwards and back, until `walks` walks or `density` is reached."""
    batch = batches.first()
    edges = edge_weights(weights, ABSOLUTE, batch.x.dtype, leaves=True)
    wanted = budget(weights.mask.total, 1.0 if density is None else density)
    scores = {name: w.abs() / (w.abs().max() + 1e-30) / 2 for name, w in weights.items()}  # in [0, 1/2]
    turns = max(1, walks // walkers)
    with undisturbed(model):
        for turn in range(turns):
            visited = walk(model, edges, batch, walkers, turn % 2 == 0, generator)
            for name, seen in visited.items():
                scores[name] += (seen & (scores[name] < 1)) * (turns - turn)
            if sum(int((s >= 1).sum()) for s in scores.values()) >= wanted:
                break
    return scores
