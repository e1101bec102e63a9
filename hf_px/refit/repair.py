"""repair: the kept weights of a pruned network refitted, so that every layer computes what the dense one did.

For each layer min_W E ‖W x - W_d x‖² + λ ‖W - M ⊙ W_d‖² over the kept weights W, and the bias with them; x are the
dense network's own inputs of that layer on some unlabelled images, without their mean where a bias or a batch norm
takes it up. Then batch norm's statistics. It costs one forward pass for the inputs, two for the statistics, and the
solutions.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..core.absorbed_means import absorbed_means
from ..core.batches import Batch, Batches
from ..core.forward import input_advice, undisturbed
from ..core.input_moments import Gram, Key, measure_inputs
from ..core.mask import Mask
from ..core.processes import rank, world_size
from ..core.prunable import check_weights, finite, plain_module, prunable
from ..core.text import name_list
from .least_squares import RIDGE, refit_rows, row_errors
from .norm_statistics import measure_norms, misfits, move_statistics_
from .options import IMAGES


@dataclass
class RepairReport:
    """What a repair did: E ‖W x - W_d x‖² / E ‖W_d x‖² of each layer, before and after; centred as in the fit."""

    images: int
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()  # weights that no convolution or matrix product was seen to use

    @property
    def mean_error(self) -> tuple[float, float]:
        """Mean over layers, before and after."""
        pairs = list(self.errors.values()) or [(0.0, 0.0)]
        return sum(p[0] for p in pairs) / len(pairs), sum(p[1] for p in pairs) / len(pairs)

    def to_dict(self) -> dict[str, Any]:
        errors = {name: [round(before, 6), round(after, 6)] for name, (before, after) in self.errors.items()}
        return {"images": self.images, "errors": errors} | ({"left_out": list(self.left_out)} if self.left_out else {})


def repair(
    model: nn.Module,
    mask: Mask,
    batches: Iterable[Any],
    *,
    images: int = IMAGES,
    ridge: float = RIDGE,
    progress: bool = True,
) -> nn.Module:
    """A copy of the model with the mask applied, its kept weights refitted and its norms' statistics moved.

    The copy is in float32 where the model is in half precision.

    model     the dense model, as it was before `mask.apply_`; it is not changed
    batches   a list or loader of inputs; labels are not used. With several processes: the same batches on each
    images    use the first batches that have so many images together, at least one batch; some hundred are needed
    ridge     λ, in parts of the mean square of a layer's inputs; larger values change the weights less
    """
    model = plain_module(model)
    if not isinstance(mask, Mask):
        raise ValueError(f"`mask` is {type(mask).__name__}; expected a Mask, as hf_px.prune returns it")
    mask.tensors_of(model)  # an error if it is of another model
    exclude = prunable(model).keys() - mask.bits.keys()
    with torch.inference_mode(False):  # it hides which tensor a layer uses
        measured = Repair(model, batches, exclude=exclude, images=images, ridge=ridge, progress=progress)
        return measured.repaired(mask)[0]


class Repair:
    """A dense network, measured once on some images, to be repaired under any number of masks."""

    def __init__(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        *,
        exclude: Iterable[str] = (),
        images: int = IMAGES,
        ridge: float = RIDGE,
        progress: bool = True,
    ) -> None:
        if not ridge > 0:
            raise ValueError(f"`ridge` is {ridge}; expected a positive number, for example {RIDGE}")
        if images < 1:
            raise ValueError(f"`images` is {images}; expected 1 or more")
        check_weights(model)
        self.ridge, self.progress = ridge, progress and rank() == 0
        self.dense = _prepared(model)
        self.weights = prunable(self.dense, exclude)
        device = next(iter(self.weights.values())).device
        chosen = _first_batches(batches, device, next(iter(self.weights.values())).dtype, images)
        self.images = sum(len(batch.x) for batch in chosen)
        self.batches = [batch for batch in chosen if batch.index % world_size() == rank()]
        self.biases = _biases(self.dense, self.weights)
        with undisturbed(self.dense):
            _check_runs(self.dense, self.batches[0])
            centred = self.biases.keys() | absorbed_means(self.dense, self.weights, self.batches[0])
            moments = measure_inputs(self.dense, self.weights, self._bar("measuring the layers' inputs"), self.images)
        self.rows = {key: one.rows for key, one in moments.items()}
        self.grams: dict[Key, list[Gram]] = {k: m.finish(k[0] in centred) for k, m in moments.items()}
        self.means = {key: one.mean for key, one in moments.items()}
        self.norms = measure_norms(self.dense, self._bar("measuring the dense norms"))
        if rank() == 0 and len(odd := misfits(self.dense, self.norms)) > len(self.norms) / 2:
            warnings.warn(
                f"{name_list(odd, 3)}: the stored statistics do not fit these images; are the weights trained, and are "
                "these images like those, and normalised as the model expects? A repair cannot help otherwise",
                stacklevel=3,
            )

    def repaired(self, mask: Mask) -> tuple[nn.Module, RepairReport]:
        """(a repaired copy, what was done)."""
        model, report = self.refitted(mask)
        if report.left_out and rank() == 0:
            warnings.warn(
                f"{name_list(report.left_out, 3)}: not refitted, because the model computes with other tensors than "
                "these (weight standardisation, for example); they keep their values under the mask",
                stacklevel=2,
            )
        measured = measure_norms(model, self._bar("measuring the sparse norms"))
        move_statistics_(model, self.dense, measured, self.norms)
        return model.to(memory_format=torch.contiguous_format), report

    @torch.no_grad()
    def refitted(self, mask: Mask) -> tuple[nn.Module, RepairReport]:
        """As `repaired`, with the norms' statistics as they were."""
        _check_dense(self.dense, mask)
        model = mask.apply_(copy.deepcopy(self.dense))
        own = mask.tensors_of(model)
        seen = {name for name, _ in self.grams}
        report = RepairReport(self.images, left_out=tuple(n for n in mask.bits if n not in seen))
        sums: dict[str, Tensor] = {}
        bar = tqdm(
            self.grams.items(), desc="refitting", unit="layer", delay=1.0, disable=not self.progress, leave=False
        )
        for key, grams in bar:
            name, rows = key[0], self.rows[key]
            if name not in mask.bits:
                continue
            dense = self.weights[name].detach()[rows].flatten(1)
            kept = mask.bits[name][rows].flatten(1).to(dense.device)
            fitted, errors = _refit_groups(dense, kept, grams, self.ridge)
            own[name][rows] = fitted.view_as(own[name][rows])
            sums[name] = sums.get(name, 0) + errors
            if name in self.biases:  # b = E[W_d x + b_d] - E[W x]: what the weights no longer say of the mean
                lost = ((dense - fitted).unflatten(0, (len(grams), -1)) @ self.means[key].unsqueeze(2)).flatten()
                model.get_parameter(self.biases[name])[rows] += lost
        for name, total in sums.items():
            before, after, power = total.tolist()
            report.errors[name] = (before / power, after / power) if power > 0 else (0.0, 0.0)
        return model, report

    def _bar(self, text: str) -> Iterable[Batch]:
        return tqdm(self.batches, desc=text, unit="batch", delay=1.0, disable=not self.progress, leave=False)


def _refit_groups(dense: Tensor, kept: Tensor, grams: list[Gram], ridge: float) -> tuple[Tensor, Tensor]:
    """Refitted rows, and the sums (error before, error after, power of the dense output)."""
    parts, errors = [], dense.new_zeros(3, dtype=torch.float64)
    size = len(dense) // len(grams)
    for group, gram in enumerate(grams):
        at = slice(group * size, (group + 1) * size)
        parts.append(refit_rows(dense[at], kept[at], gram, ridge))
        for i, weight in enumerate((dense[at] * kept[at], parts[-1], torch.zeros_like(dense[at]))):
            errors[i] += row_errors(weight, dense[at], gram).double().sum()
    return torch.cat(parts), errors


def _first_batches(batches: Iterable[Any], device: torch.device, dtype: torch.dtype, images: int) -> list[Batch]:
    """Batches with `images` images together, checked; all of them where there are fewer."""
    chosen: list[Batch] = []
    for batch in Batches(batches, device, dtype):
        if not finite(batch.x):
            raise ValueError(f"batch {batch.index} holds nan or inf; check the images and their normalisation")
        if chosen and batch.x.shape[1:2] != chosen[0].x.shape[1:2]:
            raise ValueError(
                f"batch {batch.index} has the shape {tuple(batch.x.shape)}, the first {tuple(chosen[0].x.shape)}; "
                "all need the same number of channels"
            )
        chosen.append(batch)
        if sum(len(b.x) for b in chosen) >= images:
            break
    if not chosen:
        raise ValueError("`batches` is empty; pass at least one batch of inputs")
    if len(chosen) < world_size():
        raise ValueError(f"{len(chosen)} batches for {world_size()} processes; pass smaller batches")
    return chosen


def _check_runs(model: nn.Module, batch: Batch) -> None:
    args, kwargs = batch.row().call_args()
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    except Exception as error:
        shape = tuple(batch.x.shape)
        reason = input_advice(model, batch.x) or error
        raise ValueError(f"{type(model).__name__} does not run on inputs of shape {shape}: {reason}") from error


def _check_dense(model: nn.Module, mask: Mask) -> None:
    weights = mask.tensors_of(model)
    pruned = (weights[name].detach()[~bits.to(weights[name].device)] for name, bits in mask.bits.items())
    if mask.kept < mask.total and not any(bool(values.any()) for values in pruned):
        raise ValueError(
            "the model's pruned weights are zero already; pass the dense model, as it was before mask.apply_"
        )


def _prepared(model: nn.Module) -> nn.Module:
    """A copy in float32 or wider, channels last: convolutions on a CPU then take two thirds of the time."""
    model = copy.deepcopy(model).to(memory_format=torch.channels_last)
    half = any(p.is_floating_point() and p.dtype.itemsize < 4 for p in model.parameters())
    return model.float() if half else model


def _biases(model: nn.Module, weights: Iterable[str]) -> dict[str, str]:
    """{weight: bias} of the layers that have one."""
    own = dict(model.named_parameters(remove_duplicate=False))
    found = {}
    for name in weights:
        prefix, _, local = name.rpartition(".")
        bias = {"weight": "bias", "in_proj_weight": "in_proj_bias"}.get(local)
        bias = f"{prefix}.{bias}" if prefix else bias
        if bias in own and own[bias].shape == own[name].shape[:1]:
            found[name] = bias
    return found
