"""Collapse: no signal to prune by, no path left, a layer emptied or cut off. Each is an error or a warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from ..core.batches import Batches
from ..core.errors import CollapseError, NoSignalError, UnsupportedModelError
from ..core.head import head_of
from ..core.mask import Mask
from ..core.registry import ScorerRecord
from ..core.text import name_list
from . import live_weights, lost_factors


def check_signal(record: ScorerRecord, scores: Mapping[str, Tensor]) -> list[str]:
    """Warn of weights that score exactly zero in the first round: they go first. An error if all of them do.

    Returns the names of tensors without any score.
    """
    zeros = {name: int((s == 0).sum()) for name, s in scores.items()}
    part = sum(zeros.values()) / sum(s.numel() for s in scores.values())
    cause = (
        "Likely causes: zero-initialised weights or scales (timm: zero_init_last=False, or load trained weights), "
        "units that no sample activates, label maps without a label (all 255) and, for path scorers, weights that see "
        "padding only (atrous convolutions on small images)"
    )
    if part == 1.0:
        raise NoSignalError(f"scorer {record.name}: every weight scores zero, so a mask would be arbitrary. {cause}")
    if part > 0.05:
        worst = sorted(zeros, key=lambda name: -zeros[name])[:3]
        warnings.warn(
            f"scorer {record.name}: {part:.1%} of the weights score exactly zero, most in {', '.join(worst)}; they go "
            f"first, unless named in `exclude`. {cause}",
            stacklevel=4,
        )
    return [name for name, count in zeros.items() if count == scores[name].numel()]


def check_alive(model: nn.Module, mask: Mask, data: Batches | None) -> Mapping[str, Tensor]:
    """Which kept weights lie on a path, as far as that can be known; an error if none does."""
    if data is None:
        return mask.bits  # the shape of an input is unknown
    try:
        live = live_weights(model, mask, data.first())
    except UnsupportedModelError:
        return mask.bits  # the model has an operation without a rule, and the scorer did not need one
    if not any(bool(bits.any()) for bits in live.values()):
        empty = [name for name, bits in mask.bits.items() if not bits.any()]
        thin = sorted(mask.bits, key=lambda name: float(mask.bits[name].float().mean()))[:3]
        cause = f"emptied: {', '.join(empty)}" if empty else f"no layer is empty, the thinnest are {', '.join(thin)}"
        head = "`keep_head` keeps the head's weights; " if set(empty) & set(head_of(model)) else ""
        raise CollapseError(
            f"no path from input to output is left at sparsity {mask.sparsity:.4f} ({cause}); {head}"
            "use `min_per_layer`, more `rounds`, `scope` erk, or a lower `sparsity`"
        )
    return live


def warn_of_lost_layers(
    mask: Mask,
    live: Mapping[str, Tensor],
    head: Sequence[str] = (),
    scoreless: Sequence[str] | None = (),
    flow: bool = False,
    steering: Sequence[str] = (),
) -> None:
    """Warn of layers that carry nothing: behind a skip or in a branch they can vanish and the network still runs.

    scoreless  tensors that scored zero from the first round on, which no choice of `norm` changes; None: unknown
    flow       the method has `norm` flow and does not use it yet
    steering   tensors on no path, such as queries and keys, whose scores do not depend on `norm` flow
    """
    empty = [name for name, bits in mask.bits.items() if bits.numel() and not bits.any()]
    cut_off = [name for name in mask.bits if name not in empty and not live[name].any()]
    losses = [f"no weight is left in {_counted(empty)}"] if empty else []
    losses += [f"no weight on a path is left in {_counted(cut_off)}"] if cut_off else []
    if losses:
        lost = {*empty, *cut_off}
        silent = [name for name in empty if name in (scoreless or ())]
        advice = "`keep_head` keeps all weights of the head; " if lost & set(head) else ""
        if silent:
            advice += f"{_counted(silent)} never had a score: `exclude` keeps them; "
        if flow and scoreless is not None and lost - set(silent) - set(steering) - set(head):
            advice += "`norm` flow gives every branch its share; "
        warnings.warn(
            f"of {len(mask.bits)} layers, {' and '.join(losses)}: the network runs without them. {advice}"
            "`min_per_layer` keeps some weights in each layer; more rounds or a lower sparsity help too",
            stacklevel=4,
        )


def warn_of_lost_factors(model: nn.Module, mask: Mask, data: Batches | None) -> None:
    """Warn of attention without queries, keys or values (one tensor may hold all) and of gated units without a side."""
    try:
        lost = [] if data is None else lost_factors(model, mask, data.first())
    except UnsupportedModelError:
        return  # as in check_alive
    if lost:
        warnings.warn(
            f"no queries, no keys, no values or no other side of a product is left in {_counted(lost)}: their scores "
            "were the lowest. `scope` erk keeps weights in every tensor, `exclude` all weights of one; a lower "
            "sparsity helps too",
            stacklevel=4,
        )


def _counted(names: Sequence[str]) -> str:
    return f"{len(names)} ({name_list(names, 5)})"
