"""Scores of a pruning round: five quantiles for each layer, and the threshold between kept and removed weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.mask import Mask
from ..core.prunable import finite

Quantiles = tuple[float, float, float, float, float]  # minimum, quartile, median, quartile, maximum
_MOST = 2**20  # scores per layer; torch.quantile refuses large tensors, so of a larger layer every n-th score is taken


@dataclass(frozen=True)
class SaliencyRow:
    name: str
    scored: int  # weights that the round scored
    kept: int  # those of them that it kept
    zero: int  # those with a score of exactly 0
    quantiles: Quantiles | None  # None: nothing was scored


@dataclass(frozen=True)
class Saliency:
    rows: list[SaliencyRow]
    threshold: float | None  # the lowest score that was kept; None if nothing was removed
    clean: bool  # one threshold separates kept from removed scores


def saliency(scores: Mapping[str, Tensor], before: Mask, after: Mask) -> Saliency:
    """Statistics of the scores by layer, of all weights in `before`; the round kept those in `after`."""
    if missing := [name for name in before.bits if name not in scores or name not in after.bits]:
        raise ValueError(f"{missing[0]}: in `before`, but not in `scores` or not in `after`; are they of one model?")
    rows = []
    lowest_kept, highest_removed, removed_count = math.inf, -math.inf, 0
    for name, bits in before.bits.items():
        s, stays = scores[name].detach().double(), after.bits[name].to(bits.device)
        if bool((stays & ~bits).any()) or not finite(s):
            raise ValueError(f"{name}: `after` keeps a weight that `before` does not, or a score is inf or nan")
        part, kept = s[bits].cpu(), s[bits & stays].cpu()
        removed = s[bits & ~stays].cpu()
        rows.append(SaliencyRow(name, part.numel(), kept.numel(), int((part == 0).sum()), _quantiles(part)))
        lowest_kept = min(lowest_kept, float(kept.min())) if kept.numel() else lowest_kept
        highest_removed = max(highest_removed, float(removed.max())) if removed.numel() else highest_removed
        removed_count += removed.numel()
    threshold = lowest_kept if removed_count and math.isfinite(lowest_kept) else None
    return Saliency(rows, threshold, highest_removed <= lowest_kept)


def _quantiles(part: Tensor) -> Quantiles | None:
    if not part.numel():
        return None
    ordered = part.sort().values
    low, high = float(ordered[0]), float(ordered[-1])
    some = ordered[:: max(1, len(ordered) // _MOST)]
    quarter, middle, three = torch.quantile(some, torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
    return low, quarter, middle, three, high
