"""Jaccard index of two masks, |A ∩ B| / |A ∪ B|, for each layer and in total."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.mask import Mask


@dataclass(frozen=True)
class OverlapRow:
    name: str
    first: int
    second: int
    shared: int

    @property
    def jaccard(self) -> float:
        """1 if both masks are empty, because they agree."""
        union = self.first + self.second - self.shared
        return self.shared / union if union else 1.0


@dataclass(frozen=True)
class Overlap:
    rows: list[OverlapRow]

    @property
    def all(self) -> OverlapRow:
        rows = self.rows
        return OverlapRow("all", sum(r.first for r in rows), sum(r.second for r in rows), sum(r.shared for r in rows))


def overlap(first: Mask, second: Mask) -> Overlap:
    """How many weights two masks share, by layer. Masks of different models are an error that names the tensor."""
    shared = (first & second).bits
    return Overlap(
        [
            OverlapRow(name, int(first.bits[name].sum()), int(second.bits[name].sum()), int(bits.sum()))
            for name, bits in shared.items()
        ]
    )


def random_jaccard(first: Mask, second: Mask) -> float:
    """Expected Jaccard index of two random masks with these densities a and b: ab / (a + b - ab)."""
    a, b = first.density, second.density
    union = a + b - a * b
    return a * b / union if union else 1.0
