"""Jaccard: |A ∩ B| / |A ∪ B|, what two masks share, by layer and in all."""

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
        """1 where both are empty: they agree."""
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
    """An error that names the tensor, where the two are not of one model."""
    both = first & second
    return Overlap(
        [
            OverlapRow(name, int(first.bits[name].sum()), int(second.bits[name].sum()), int(bits.sum()))
            for name, bits in both.bits.items()
        ]
    )


def by_chance(first: Mask, second: Mask) -> float:
    """The Jaccard to expect of two masks that are drawn at random with these densities: ab / (a + b - ab)."""
    a, b = first.density, second.density
    union = a + b - a * b
    return a * b / union if union else 1.0
