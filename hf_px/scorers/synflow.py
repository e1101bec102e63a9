"""SynFlow: S = |θ| ⊙ ∂R/∂|θ|, R = 1ᵀ (Π_l |θ_l|) 1; SynFlow-L2 the same with θ²; LogSynFlow |θ| ⊙ log(1 + ∂R/∂|θ|).

Tanaka et al., Pruning neural networks without any data by iteratively conserving synaptic flow, NeurIPS 2020;
Gebhart et al., A Unified Paths Perspective for Pruning at Initialization, 2021; Cavagnero et al., FreeREA, WACV 2023.

Every gate is open and batch norm has its stored statistics; max-pooling sums its window, since R counts all paths.
Exact rescaling keeps R in range, for a ResNet-50 at 224x224 too.

The papers have no attention. Ours: of weights on no path, such as queries and keys, R is the flow that passes the gate
that they steer, and the path runs to that gate (paths/gate_flow.py).
"""

from __future__ import annotations

import math

import torch
from torch import nn

from ..core.batches import Batches
from ..core.forward import undisturbed
from ..core.mask import MaskedWeights
from ..core.registry import Scores, scorer
from ..paths import ABSOLUTE, SQUARED, View, edge_weights, open_flow

_TANAKA = "Tanaka et al., NeurIPS 2020"
_GEBHART = "Gebhart et al., 2021"
_CAVAGNERO = "Cavagnero et al., WACV 2023"


@scorer("synflow", summary="|θ| ⊙ ∂R/∂|θ|, R = 1ᵀ Π|θ| 1", needs="shape", paths=True, rounds=100, paper=_TANAKA)
def synflow(model: nn.Module, weights: MaskedWeights, batches: Batches, *, generator: torch.Generator) -> Scores:
    flow, exponent = path_flow(model, weights, batches, ABSOLUTE)
    return batches.once(flow, exponent)


@scorer("synflow-l2", summary="θ² ⊙ ∂R/∂θ², R = 1ᵀ Πθ² 1", needs="shape", paths=True, rounds=100, paper=_GEBHART)
def synflow_l2(model: nn.Module, weights: MaskedWeights, batches: Batches, *, generator: torch.Generator) -> Scores:
    flow, exponent = path_flow(model, weights, batches, SQUARED)
    return batches.once(flow, exponent)


@scorer("logsynflow", summary="|θ| ⊙ log(1 + ∂R/∂|θ|)", needs="shape", paths=True, rounds=100, paper=_CAVAGNERO)
def logsynflow(model: nn.Module, weights: MaskedWeights, batches: Batches, *, generator: torch.Generator) -> Scores:
    flow, exponent = path_flow(model, weights, batches, ABSOLUTE)
    scores = {}
    for name, share in flow.items():
        size = weights[name].abs().double()
        # log(1 + ∂R) = softplus(log ∂R): the logarithm needs the true size of ∂R, which float64 may not hold
        log = (share / size).log() + exponent * math.log(2.0)
        scores[name] = torch.where(share > 0, size * torch.nn.functional.softplus(log, threshold=40.0), 0.0)
    return scores


def path_flow(model: nn.Module, weights: MaskedWeights, batches: Batches, view: View) -> tuple[Scores, int]:
    """|θ|^e ⊙ ∂R/∂|θ|^e on an input of ones, as values and a power of two."""
    edges = edge_weights(weights, view, torch.float64, leaves=True)
    with undisturbed(model):
        return open_flow(model, edges, view, batches.first().row())
