"""px-path: S = θ² ⊙ ∂R/∂θ², R = Σ_n Σ_k f̃^k(x_n², (θγ/σ)² ⊙ M, a_n), the trace of the NTK in expectation, path by path.

Σ_j ∂R/∂θ_j² = Σ_p ‖J_v^f[:, p]‖² · ‖J_θ^v[p, :]‖²: the two factors of the PX bound multiplied path by path before they
are summed, so never above it. With the gates held, and weight signs independent and symmetric as at a Kaiming
initialisation, the cross terms vanish and it equals the expected trace, but for the products of positions that share
weights. For given weights it is not a bound. Weights on no path, such as queries and keys, have their share in the
trace itself, by random signs over outputs, in the units of the path scores (paths/steering.py). An extension of Iurada
et al., CVPR 2024, by this project.
"""

from __future__ import annotations

from typing import Literal

from torch import Generator, nn

from ..core.batches import Batch, Batches, Contribution
from ..core.forward import labelled_output, undisturbed
from ..core.mask import MaskedWeights
from ..core.registry import Scores, scorer
from ..paths import (
    PATHS,
    LastReplay,
    beside_paths,
    edge_shares,
    edge_weights,
    in_one_ranking,
    like_contribution,
    operations,
    record,
    replay,
    steering_shares,
    weights_that_steer,
)

Norm = Literal["batch", "running"]
PART = 4 * 3 * 224 * 224  # values of images that are scored at a time: their gates and graph are what takes memory


@scorer(
    "px-path",
    summary="θ² ⊙ ∂R/∂θ², R = Σ f̃(x², θ², a)",
    needs="inputs",
    paths=True,
    rounds=100,
    paper="hf_px, after Iurada et al., CVPR 2024",
)
def px_path(
    model: nn.Module, weights: MaskedWeights, batches: Batches, *, generator: Generator, norm: Norm = "batch"
) -> Scores:
    def contribution(batch: Batch) -> Contribution:
        steering = steering_shares(model, weights, steers, batch, norm, generator)
        _, tape = record(model, weights, batch, norm)
        squared = edge_weights(weights, PATHS, batch.x.dtype, leaves=True)
        flow = replay(model, squared, PATHS, batch, batch.x.square(), tape, LastReplay)
        paths = edge_shares(labelled_output(flow.values, batch.labels).sum(), squared, flow.exponent)
        return beside_paths(*paths, steering)

    with undisturbed(model):
        steers = weights_that_steer(model, weights, batches.first())
        if norm == "running" or "batch_norm" not in operations(model, weights, batches.first().row()):
            batches = batches.in_parts(PART)
        return in_one_ranking(batches.sum(contribution, like=like_contribution(weights, steers)))
