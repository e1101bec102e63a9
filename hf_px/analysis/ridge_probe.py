"""A ridge head: W, b = argmin Σ_n ‖W f(x_n) + b - y_n‖² + λ n ‖W‖², f the features before the last layer, y one-hot.

It measures which classes a pruned backbone can still separate before any training, by a linear map in closed form. λ
is the best of nine powers of ten on a held-out fifth of the examples; then all examples are fitted. The statistics of
BatchNorm are measured first, because those of the dense network do not fit the pruned one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.forward import undisturbed
from ..core.head import head_of

LAMBDAS = tuple(10.0**power for power in range(-6, 3))  # in units of the mean eigenvalue of the features' covariance


def with_ridge_head(
    model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], classes: int, *, as_logits: bool = False
) -> nn.Module:
    """A copy of the model with statistics and head fitted to these images; use its accuracy, not its probabilities.

    `as_logits` multiplies the head by the factor that gives held-out images the smallest cross-entropy, so that its
    outputs are logits, to train on from.
    """
    model = copy.deepcopy(model)
    head = linear_head(model, classes)
    recalibrate_(model, (x for x, _ in batches))
    features, labels = _features(model, head, batches), torch.cat([y for _, y in batches])
    intercept = head.bias is not None
    weight, bias = ridge(features, nn.functional.one_hot(labels, classes).double(), intercept=intercept)
    if as_logits:
        factor = _logit_scale(features, labels, classes, intercept)
        weight, bias = factor * weight, factor * bias
    with torch.no_grad():
        head.weight.copy_(weight)
        if head.bias is not None:
            # without their mean, which shifts all logits alike: bfloat16 cannot tell 0.1 + 0.0001 from 0.1
            head.bias.copy_(bias - bias.mean())
    return model


def ridge(x: Tensor, y: Tensor, *, intercept: bool = True, lambdas: Sequence[float] = LAMBDAS) -> tuple[Tensor, Tensor]:
    """(W, b) for rows x and y; every fifth row is held out to choose λ."""
    held = torch.arange(len(x)) % 5 == 4
    best = lambdas[0]
    if held.any() and len(lambdas) > 1:
        found = _solutions(x[~held], y[~held], lambdas, intercept)
        right = [int(((x[held] @ w.mT + b).argmax(1) == y[held].argmax(1)).sum()) for w, b in found]
        # among equals the largest λ, which gives the simplest map
        best = max(zip(right, lambdas))[1]
    return _solutions(x, y, [best], intercept)[0]


def _logit_scale(x: Tensor, labels: Tensor, classes: int, intercept: bool) -> float:
    """argmin_s CE(s · (W x + b), y) on the held-out fifth, s in [1, 128]."""
    held = torch.arange(len(x)) % 5 == 4
    if not held.any():
        return 1.0
    weight, bias = ridge(x[~held], nn.functional.one_hot(labels[~held], classes).double(), intercept=intercept)
    outputs = x[held] @ weight.mT + bias
    factors = 2.0 ** torch.arange(0, 7.25, 0.25)
    losses = [float(nn.functional.cross_entropy(factor * outputs, labels[held])) for factor in factors]
    return float(factors[min(range(len(losses)), key=losses.__getitem__)])


def _solutions(x: Tensor, y: Tensor, lambdas: Sequence[float], intercept: bool) -> list[tuple[Tensor, Tensor]]:
    """(W, b) for each λ, from one eigendecomposition: (C + λI)⁻¹ = V (Λ + λ)⁻¹ Vᵀ."""
    x, y = x.double(), y.double()
    mean_x, mean_y = (part.mean(0) if intercept else torch.zeros_like(part[0]) for part in (x, y))
    x, y = x - mean_x, y - mean_y
    values, vectors = torch.linalg.eigh(x.mT @ x / len(x))
    scale = values.mean().clamp(min=torch.finfo(values.dtype).tiny)  # all features may be zero
    toward = vectors.mT @ (x.mT @ y / len(x))
    found = []
    for each in lambdas:
        weight = (vectors @ (toward / (values.clamp(min=0) + each * scale)[:, None])).mT
        found.append((weight, mean_y - weight @ mean_x))
    return found


@torch.no_grad()
def recalibrate_(model: nn.Module, images: Iterable[Tensor]) -> None:
    """Replace the running statistics of BatchNorm by their mean over these batches."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # None makes torch compute a plain average
    if norms:
        with undisturbed(model, batch_statistics=True):
            for x in images:
                model(x.to(next(model.parameters()).device))
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum


def linear_head(model: nn.Module, classes: int) -> nn.Linear:
    named = head_of(model)
    head = model.get_submodule(named[0].rpartition(".")[0]) if len(named) == 1 else None
    if not isinstance(head, nn.Linear) or head.out_features != classes:
        raise ValueError(
            f"a ridge head replaces one linear layer with {classes} outputs; the head of this model is "
            f"{', '.join(named) or 'unknown'}"
        )
    return head


@torch.no_grad()
def _features(model: nn.Module, head: nn.Linear, batches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The inputs of the head."""
    seen: list[Tensor] = []

    def note(module: nn.Module, inputs: Any) -> None:
        seen.append(inputs[0].double().cpu())

    handle = head.register_forward_pre_hook(note)
    try:
        with undisturbed(model):
            for x, _ in batches:
                model(x.to(head.weight.device))
    finally:
        handle.remove()
    return torch.cat(seen)
