"""PX: S = θ² ⊙ ∂R/∂θ², R = Σ_b Σ_k G_b^k · h_b^k, G_b^k = Σ_n g^k(x_n², 1 ⊙ M, a_n), h^k = h^k(1, θ² ⊙ M, 1).

R bounds the trace of the neural tangent kernel: Tr Θ ≤ Σ_k G^k · Σ_j ∂h^k/∂θ_j² (equations 6 to 9). Iurada et al.,
Finding Lottery Tickets in Vision Models via Data-driven Spectral Foresight Pruning, CVPR 2024.

h does not depend on the data, so all its rows are equal: one row is run, and G needs no graph. A round costs two
forward passes per batch, and a forward and a backward pass on one row. With exact rescaling, float32 is enough on the
CPU, where sums of positive terms stay positive; cuDNN may multiply by transforms whose rounding error is relative to
the largest value, so h is float64 there.

In segmentation an output k is a class at a pixel; pixels without a label do not count in G, as they are in no loss. Of
parallel branches, as in DeepLabV3+, h starves the shorter one: a layer divides by σ² = Σθ² Var relu(z), while each
input of h is 1 and not Var relu(z) = 1/2 - 1/2π for z ~ N(0, 1). So every normalised layer of a branch multiplies its
share by 2.9, and a ResNet's 13 blocks leave 10⁻¹⁰ of R to the branch beside them. px-path keeps the gates and has
1.5 instead of 2.9; norm="flow" has 1.

Weights on no path, such as queries and keys, have their share in the trace itself, in the units in which the weights on
paths have the same sum by their scores here and by their shares there (paths/steering.py).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ..core.batches import Batch, Batches, Contribution
from ..core.forward import call, labelled_output, undisturbed
from ..core.mask import MaskedWeights
from ..core.registry import Scores, scorer
from ..paths import (
    FLOW,
    ONES,
    SQUARED,
    LastReplay,
    beside_paths,
    edge_shares,
    edge_weights,
    in_one_ranking,
    like_contribution,
    record,
    replay,
    steering_shares,
    ungated,
    weights_that_steer,
)


@scorer(
    "px",
    summary="θ² ⊙ ∂R/∂θ², R = Σ g(x², 1, a) · h(1, θ², 1)",
    needs="inputs",
    paths=True,
    rounds=100,
    paper="Iurada et al., CVPR 2024",
    segmentation_norm="flow",  # with batch, the deep branch of a DeepLabV3+ starves the shallow one
)
def px(
    model: nn.Module,
    weights: MaskedWeights,
    batches: Batches,
    *,
    generator: torch.Generator,
    norm: Literal["batch", "flow", "running", "released"] = "batch",
) -> Scores:
    """`norm`: σ of a normalisation layer, an edge of weight γ/σ in h.

    batch     σ of this batch through the masked network of this round, held constant. As a branch thins, its σ
              falls and its gain rises, so that no layer is starved.
    flow      σ² is the mean of h itself before the layer, held constant: every branch carries flow, however short. For
              networks with branches of unequal depth; it is no longer a bound on the trace.
    running   the stored σ: Algorithm 1 as printed. At initialisation σ = 1, and branches beside a shortcut die.
    released  what the authors' code of April 2024 computes, which is not Algorithm 1; see _released.
    """
    if norm == "released":
        with undisturbed(model, batch_statistics=True):
            total = batches.sum(lambda batch: _released(model, weights, batch), like=weights)
        return {name: s.abs() for name, s in total.items()}
    if norm == "flow":
        with undisturbed(model):
            return _by_own_flow(model, weights, batches, generator)

    def contribution(batch: Batch) -> Contribution:
        """θ² ⊙ ∂/∂θ² Σ_k G^k h^k of one batch, as values and a power of two."""
        steering = steering_shares(model, weights, steers, batch, norm, generator)
        _, tape = record(model, weights, batch, norm)
        with torch.no_grad():
            ones = edge_weights(weights, ONES, batch.x.dtype)
            # all gates of h are open, so g is the last to need them
            g = replay(model, ones, ONES, batch, batch.x.square(), tape, LastReplay)
        row, dtype = batch.row(), torch.float64 if batch.x.is_cuda else batch.x.dtype
        squared = edge_weights(weights, SQUARED, dtype, leaves=True)
        h = replay(model, squared, SQUARED, row, torch.ones(row.x.shape, dtype=dtype, device=row.x.device), tape)
        total = (labelled_output(g.values, batch.labels).sum(0, keepdim=True) * h.values).sum()
        return beside_paths(*edge_shares(total, squared, g.exponent + h.exponent), steering)

    with undisturbed(model):
        steers = weights_that_steer(model, weights, batches.first())
        return in_one_ranking(batches.sum(contribution, like=like_contribution(weights, steers)))


def _by_own_flow(model: nn.Module, weights: MaskedWeights, batches: Batches, generator: torch.Generator) -> Scores:
    """θ² ⊙ ∂/∂θ² Σ_k G^k h^k: h does not depend on a batch, so Σ_b G_b comes first and h is run once."""
    row = batches.first().row()
    steers = weights_that_steer(model, weights, row)
    with torch.no_grad():
        output = call(model, weights, row)[0]

    def of_outputs(batch: Batch) -> Contribution:
        """G_b, one number per output, beside the shares of weights on no path."""
        steering = steering_shares(model, weights, steers, batch, "batch", generator)
        _, tape = record(model, weights, batch, "batch")
        with torch.no_grad():
            ones = edge_weights(weights, ONES, batch.x.dtype)
            g = replay(model, ones, ONES, batch, batch.x.square(), tape, LastReplay)
        if g.values.shape[1:] != output.shape:
            raise ValueError(
                f"batch {batch.index} has outputs of {tuple(g.values.shape[1:])}, the first one of "
                f"{tuple(output.shape)}; with norm='flow' all batches must be of one size"
            )
        return beside_paths({"G": labelled_output(g.values, batch.labels).sum(0)}, g.exponent, steering)

    like = like_contribution(weights, steers)
    total = batches.sum(of_outputs, like={"G": output, **{name: like[name] for name in like.keys() - weights.keys()}})
    dtype = torch.float64 if row.x.is_cuda else row.x.dtype
    squared = edge_weights(weights, FLOW, dtype, leaves=True)
    h = replay(model, squared, FLOW, row, torch.ones(row.x.shape, dtype=dtype, device=row.x.device))
    shares = edge_shares((total.pop("G") * h.values[0]).sum(), squared, h.exponent)
    return batches.once(in_one_ranking({**shares[0], **total}), shares[1])


def _released(model: nn.Module, weights: MaskedWeights, batch: Batch) -> dict[str, Tensor]:
    """∂R/∂θ² · θ² · θ · θ², R = Σ f(x; θ ⊙ M) · h(x; θ² ⊙ M), batch statistics everywhere, no gates in h.

    Its g runs the masked weights on x with the recorded gates, which is f.
    """
    with torch.no_grad():
        f = call(model, weights, batch)
    squared = edge_weights(weights, SQUARED, batch.x.dtype, leaves=True)
    with ungated():
        h = call(model, squared, batch)
    share, _ = edge_shares((f * h).sum(), squared)
    return {name: share[name] * weights[name] * weights[name].square() for name in share}
