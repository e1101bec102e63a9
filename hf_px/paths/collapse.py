"""What a mask has lost: no signal to prune by, no path left, a layer emptied or cut off; an error or a warning each."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from ..core.batches import Batches
from ..core.errors import CollapseError, NoSignalError, UnsupportedModelError
from ..core.mask import Mask
from ..core.registry import ScorerRecord
from . import live_weights


def check_signal(record: ScorerRecord, scores: Mapping[str, Tensor]) -> None:
    """In the first round: weights that score exactly zero go first, which the user should know and may not want."""
    zeros = {name: int((s == 0).sum()) for name, s in scores.items()}
    part = sum(zeros.values()) / sum(s.numel() for s in scores.values())
    cause = (
        "Likely causes: zero-initialised weights or scales (timm: zero_init_last=False, or load trained weights), "
        "units that no sample activates, masks without a label (all 255) and, for path scorers, weights that only "
        "steer a frozen gate (attention queries and keys, squeeze-and-excitation) or see padding only (atrous "
        "convolutions on small images)"
    )
    if part == 1.0:
        raise NoSignalError(f"scorer {record.name}: every weight scores zero, so a mask would be arbitrary. {cause}")
    if part > 0.05:
        worst = sorted(zeros, key=lambda name: -zeros[name])[:3]
        warnings.warn(
            f"scorer {record.name}: {part:.1%} of the weights score exactly zero, most in {', '.join(worst)}; they go "
            f"first, unless named in exclude=. {cause}",
            stacklevel=3,
        )


def check_alive(model: nn.Module, mask: Mask, data: Batches | None) -> Mapping[str, Tensor]:
    """Which kept weights lie on a path, where that can be known; an error if none does."""
    if data is None:
        return mask.bits  # neither batches nor the model tell what an input looks like
    try:
        live = live_weights(model, mask, data.first())
    except UnsupportedModelError:
        return mask.bits  # a scorer without paths on a model without rules: hf_px.summary says that it is unknown
    if not any(bool(bits.any()) for bits in live.values()):
        empty = [name for name, bits in mask.bits.items() if not bits.any()]
        thin = sorted(mask.bits, key=lambda name: float(mask.bits[name].float().mean()))[:3]
        cause = f"emptied: {', '.join(empty)}" if empty else f"no layer is empty, the thinnest are {', '.join(thin)}"
        raise CollapseError(
            f"no path from input to output is left at sparsity {mask.sparsity:.4f} ({cause}); "
            "use min_per_layer, more rounds, scope='erk', or a lower sparsity"
        )
    return live


def tell_lost(mask: Mask, live: Mapping[str, Tensor], scorer: str) -> None:
    """A layer beside others may go and the network still answers: a skip, a branch. Nobody else would notice."""
    empty = [name for name, bits in mask.bits.items() if bits.numel() and not bits.any()]
    cut_off = [name for name in mask.bits if name not in empty and not live[name].any()]
    said = [f"no weight is left in {_few(empty)}"] if empty else []
    said += [f"no weight on a path is left in {_few(cut_off)}"] if cut_off else []
    if said:
        way = "norm='flow' gives every branch its share; " if scorer == "px" else ""
        warnings.warn(
            f"of {len(mask.bits)} layers, {' and '.join(said)}: the network answers without them. {way}min_per_layer=… "
            "leaves each layer some weights; or more rounds, or a lower sparsity",
            stacklevel=3,
        )


def _few(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names[:5])}{', …' * (len(names) > 5)})"
