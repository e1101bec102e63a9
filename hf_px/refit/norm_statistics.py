"""Batch norm after pruning: σ² ← σ² r and μ ← μ_s + √r (μ - μ_d), with r = σ_s² / σ_d².

μ and σ² are the stored statistics; _d and _s are measured on the same images in the dense and in the sparse network,
with batch statistics. So after the norm each channel has the mean and variance that it has in the dense network, and
the stored statistics stay where pruning has changed nothing, however few the images are. A channel that has lost all
its weights is constant, at the mean that it had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..core.batches import Batch
from ..core.forward import undisturbed
from ..core.processes import world_size

FAR = 30.0  # another data set, or noise, changes a variance by less than ten in most channels of a trained network
Statistics = tuple[Tensor, Tensor]  # mean and variance of each channel


def norm_layers(model: nn.Module) -> dict[str, Any]:
    """Layers with stored statistics."""
    kind = nn.modules.batchnorm._BatchNorm
    return {name: m for name, m in model.named_modules() if isinstance(m, kind) and m.running_mean is not None}


@torch.no_grad()
def measure_norms(model: nn.Module, batches: Iterable[Batch]) -> dict[str, Statistics]:
    """{layer: (mean, variance)} of each norm's input over all batches of all processes, in float64."""
    sums = {n: m.running_mean.new_zeros(3, m.num_features, dtype=torch.float64) for n, m in norm_layers(model).items()}

    def add(name: str, count: int, mean: Tensor, variance: Tensor) -> None:
        sums[name] += count * torch.stack([torch.ones_like(mean), mean, variance + mean.square()])

    _run_on_batch_statistics(model, batches, add)
    measured = {}
    for name, total in sums.items():
        if world_size() > 1:
            dist.all_reduce(total)
        count, first, second = total
        mean = first / count
        measured[name] = (mean, (second / count - mean.square()).clamp_min(0))
    # a norm that did not run has no count, so no mean
    return {name: both for name, both in measured.items() if bool(both[0].isfinite().all())}


def misfits(model: nn.Module, measured: dict[str, Statistics]) -> list[str]:
    """Norms most of whose channels have a variance that is FAR times the stored one, or a FARth of it."""
    found = []
    for name, layer in norm_layers(model).items():
        if name in measured:
            ratio = (measured[name][1] + layer.eps) / (layer.running_var.double() + layer.eps)
            if float(ratio.log().abs().median()) > math.log(FAR):
                found.append(name)
    return found


def _run_on_batch_statistics(
    model: nn.Module, batches: Iterable[Batch], add: Callable[[str, int, Tensor, Tensor], None]
) -> None:
    """Call `add` with each norm's name, values of a channel, mean and variance; the stored ones stay as they were.

    A norm with momentum 1 stores those of the batch: a second look at its inputs would double the time.
    """
    layers = norm_layers(model)
    if not layers:
        return

    def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def read(module: Any, args: Any, _: Any) -> None:
            count = args[0].numel() // module.num_features
            unbiased = module.running_var.double()
            add(name, count, module.running_mean.double(), unbiased * (count - 1) / count)

        return read

    hooks = [module.register_forward_hook(hook(name)) for name, module in layers.items()]
    stored = {n: (m.momentum, {key: value.clone() for key, value in m.named_buffers()}) for n, m in layers.items()}
    try:
        for module in layers.values():
            module.momentum = 1.0
        with undisturbed(model, batch_statistics=True):
            for batch in batches:
                args, kwargs = batch.call_args()
                model(*args, **kwargs)
    finally:
        for one in hooks:
            one.remove()
        for name, (momentum, values) in stored.items():
            layers[name].momentum = momentum
            layers[name].load_state_dict(values, strict=False)


@torch.no_grad()
def move_statistics_(
    sparse: nn.Module,
    dense: nn.Module,
    of_sparse: dict[str, Statistics],
    of_dense: dict[str, Statistics],
) -> None:
    own, theirs = norm_layers(sparse), norm_layers(dense)
    for name in of_sparse.keys() & of_dense.keys():
        layer, stored = own[name], theirs[name]
        (mean, variance), (dense_mean, dense_variance) = of_sparse[name], of_dense[name]
        divided = stored.running_var.double() + layer.eps  # the norm divides by its root
        moved = (divided * (variance + layer.eps) / (dense_variance + layer.eps) - layer.eps).clamp_min(0)
        layer.running_var.copy_(moved)
        scale = ((moved + layer.eps) / divided).sqrt()
        layer.running_mean.copy_(mean + scale * (stored.running_mean.double() - dense_mean))
