"""Weights that steer: S = c · T, T = θ² Σ_n Σ_k (∂f^k(x_n)/∂θ)² = θ² Σ_n E_ε (Σ_k ε_k ∂f^k(x_n)/∂θ)², ε = ±1.

c = Σ S / Σ T over all weights on paths: in the units of the path scores, in px-path as in px.

Queries, keys, squeeze-and-excitation and other branches that end in a frozen gate lie on no path. T, their share in the
trace of the NTK, is as well defined as that of the other weights, so it is estimated from the derivatives of the real
network, image by image, with statistics of batch norm held (Hutchinson). Path scores are T of the weights on paths with
the gates held, in expectation over weight signs, where no positions share weights: there c of px-path is 1 in
expectation. Where tokens or pixels share weights, a path counts each position alone, T also their products: in a small
ViT on CIFAR-10 c is 0.18, and by layer 0.09 to 0.22. One number for a network keeps the order of the T.

Of one image, whose share is t_n, the estimate has variance 2(t_n² - Σ_k t_nk²), so T has a standard error of at most
√2 √(Σ_n t_n²), 14 % for 100 images of equal shares. So has Σ T in c, which is common to all weights that steer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.batches import Batch, Contribution
from ..core.forward import batch_statistics, call, derivatives, labelled_output
from ..core.mask import MaskedWeights
from .activations import FrozenGate, GatedUnit
from .attention import Attention, MultiHeadAttention
from .base import Norm, operation
from .live_weights import ANY_PATH, Structure
from .record_replay import replay
from .rules import RULES
from .views import edge_shares, edge_weights

ON_PATHS = "(weights on paths)"
STEERING = "steering "  # before the name of a tensor whose T is summed beside its path scores
STEERED = (Attention, MultiHeadAttention, FrozenGate, GatedUnit)


def steering_shares(
    model: nn.Module,
    weights: MaskedWeights,
    steers: Mapping[str, Tensor],
    batch: Batch,
    norm: Norm,
    generator: Generator,
) -> dict[str, Tensor]:
    """{name: T of the weights that steer, 0 for the others, ON_PATHS: Σ T of all others}, with weights_that_steer."""
    if not steers:
        return {}
    state = batch_statistics(model, weights, batch) if norm == "batch" else {}
    leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
    total = {name: torch.zeros_like(weights[name]) for name in steers}
    on_paths = torch.zeros((), dtype=torch.float64, device=batch.x.device)
    for sample in batch.samples():
        f = labelled_output(call(model, {**state, **leaves}, sample), sample.labels)
        epsilon = (torch.randint(2, f.shape, generator=sample.seeded(generator)) * 2 - 1).to(f)
        for name, g in derivatives((epsilon * f).sum(), leaves).items():
            share = (g * weights[name]).square_()
            if name in steers:
                total[name] += share * steers[name]
                share = share.masked_fill_(steers[name], 0.0)
            on_paths += share.sum(dtype=torch.float64)
    return {**total, ON_PATHS: on_paths}


def weights_that_steer(model: nn.Module, weights: MaskedWeights, batch: Batch) -> dict[str, Tensor]:
    """{name: True where a kept weight lies on no path, whatever the gates} of the tensors that hold such weights.

    Empty for a model without frozen gates; `batch` gives the input's shape.
    """
    row = batch.row()
    if not any(isinstance(RULES.get(name), STEERED) for name in operations(model, weights, row)):
        return {}
    edges = edge_weights(weights, ANY_PATH, torch.float64, leaves=True)
    out = replay(model, edges, ANY_PATH, row, torch.ones_like(row.x, dtype=torch.float64), mode=Structure)
    shares, _ = edge_shares(out.values.sum(), edges)
    off = {name: bits & (shares[name] == 0) for name, bits in weights.mask.bits.items()}
    return {name: bits for name, bits in off.items() if bits.any()}


def operations(model: nn.Module, weights: MaskedWeights, batch: Batch) -> set[str]:
    """Names of all operations on tensors in a forward pass."""
    with torch.no_grad(), _Operations() as seen:
        call(model, weights, batch)
    return seen.names


class _Operations(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(operation(func))
        return func(*args, **(kwargs or {}))


def beside_paths(paths: Mapping[str, Tensor], exponent: int, steering: Mapping[str, Tensor]) -> Contribution:
    """Path scores · 2^exponent, and T under names of their own, in one contribution to a sum over batches."""
    return {**paths, **{STEERING + name: times_power(share, -exponent) for name, share in steering.items()}}, exponent


def like_contribution(weights: MaskedWeights, steers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names and shapes of what beside_paths returns."""
    one = torch.zeros((), dtype=torch.float64)
    shapes = {STEERING + name: one.expand(bits.shape) for name, bits in steers.items()}
    return {**weights, **shapes, **({STEERING + ON_PATHS: one} if steers else {})}


def in_one_ranking(total: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """S of all weights, from the sums over batches: path scores, and c · T for the weights that steer."""
    paths = {name: score for name, score in total.items() if not name.startswith(STEERING)}
    trace = float(total.get(STEERING + ON_PATHS, 0.0))
    c = sum(float(score.sum(dtype=torch.float64)) for score in paths.values()) / trace if trace else 0.0
    for name in paths:
        if STEERING + name in total:
            paths[name] = paths[name] + (c * total[STEERING + name]).to(paths[name].dtype)
    return paths


def times_power(values: Tensor, exponent: int) -> Tensor:
    """values · 2^exponent, in float64."""
    return torch.ldexp(values.double(), torch.tensor(exponent, device=values.device))
