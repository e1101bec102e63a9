"""Scores by layer, as five quantiles, and the threshold between the weights that stay and those that go."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.mask import Mask
from ..core.prunable import finite

Quantiles = tuple[float, float, float, float, float]  # least, a quarter, the middle, three quarters, most
_MOST = 2**20  # entries to sort in a layer; of larger ones every n-th, as torch.quantile asks


@dataclass(frozen=True)
class SaliencyRow:
    name: str
    scored: int  # weights that took part
    kept: int  # of those
    zero: int  # scored exactly 0
    quantiles: Quantiles | None  # of what took part; None: nothing did


@dataclass(frozen=True)
class Saliency:
    rows: list[SaliencyRow]
    threshold: float | None  # the least score that stays; None where nothing went: the scores then tell of no cut
    clean: bool  # no score that goes is above one that stays: one threshold tells them apart

    def to_dict(self) -> dict[str, Any]:
        return {"layers": [asdict(row) for row in self.rows], "threshold": self.threshold, "clean": self.clean}


def saliency(scores: Mapping[str, Tensor], before: Mask, after: Mask) -> Saliency:
    """What a round saw and did: scores of the weights in `before`, of which those in `after` stay."""
    if lacking := [name for name in before.bits if name not in scores or name not in after.bits]:
        raise ValueError(f"{lacking[0]}: is in the mask, but has no score, or is not in the mask after; of one model?")
    rows = []
    least, most_gone, gone = math.inf, -math.inf, 0
    for name, bits in before.bits.items():
        s, stays = scores[name].detach().double(), after.bits[name].to(bits.device)
        if bool((stays & ~bits).any()) or not finite(s):
            raise ValueError(f"{name}: weights come back after the round, or scores hold inf or nan")
        part, kept = s[bits].cpu(), s[bits & stays].cpu()
        lost = s[bits & ~stays].cpu()
        rows.append(SaliencyRow(name, part.numel(), kept.numel(), int((part == 0).sum()), _quantiles(part)))
        least = min(least, float(kept.min())) if kept.numel() else least
        most_gone = max(most_gone, float(lost.max())) if lost.numel() else most_gone
        gone += lost.numel()
    return Saliency(rows, least if gone and math.isfinite(least) else None, most_gone <= least)


def _quantiles(part: Tensor) -> Quantiles | None:
    if not part.numel():
        return None
    ordered = part.sort().values
    low, high = float(ordered[0]), float(ordered[-1])
    some = ordered[:: max(1, len(ordered) // _MOST)]
    quarter, middle, three = torch.quantile(some, torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
    return low, quarter, middle, three, high
