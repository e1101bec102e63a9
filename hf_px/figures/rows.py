"""Rows of a picture, one a layer from input to output: its name beside what is drawn, or above where names are long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .axis import Axis
from .frame import EDGE, INNER, WIDTH, horizontal
from .text import SIZE, clean, front, text, width

_WIDEST = 175.0  # of a column of names, in units: blocks.11.attn.qkv.weight has its place in it
_LEAST = 90.0  # for what is drawn
_MANY = 25  # rows: the numbers of the axis stand below too


@dataclass(frozen=True)
class Rows:
    """Where things are: what is drawn of layer i lies around middle(i), from left to right."""

    names: tuple[str, ...]
    above: bool
    left: float
    right: float
    top: float
    band: float  # the height of what is drawn
    gap: float  # between a layer and the next

    @property
    def step(self) -> float:
        return self.band + self.gap + (SIZE + 2 if self.above else 0)

    @property
    def bottom(self) -> float:
        return self.top + self.step * len(self.names)

    def middle(self, i: int) -> float:
        return self.top + self.step * (i + 1) - (self.band + self.gap) / 2

    def ruled(self, axis: Axis, above: float) -> tuple[list[str], float]:
        """The axis's rules through all rows, its numbers on top and, below many rows, again; names; where it ends."""
        ticks = axis.ticks(4 if self.right - self.left < 200 else 6)
        found = horizontal(axis, ticks, self.top - above, self.bottom + 2, self.top - above - 4)
        end = self.bottom + 10
        if len(self.names) > _MANY:
            found += horizontal(axis, ticks, self.bottom, self.bottom + 2, self.bottom + 14)
            end += 12
        return found + self.labels(), end

    def labels(self) -> list[str]:
        found = []
        for i, name in enumerate(self.names):
            words = clean(name)
            if self.above:
                baseline = self.middle(i) - self.band / 2 - 3
                found.append(text(front(words, INNER), EDGE, baseline, style="name", title=words))
            else:
                shown = front(words, self.left - EDGE)
                found.append(text(shown, self.left - 6, self.middle(i) + 4, style="name", anchor="end", title=words))
        return found


def rows(names: Sequence[str], top: float, band: float, *, beside: float = 0.0, gap: float = 4.0) -> Rows:
    """Names in a column where all are short; `beside` is kept free at the right, for numbers."""
    widest = max((width(clean(name)) for name in names), default=0.0)
    above = widest > min(_WIDEST, INNER - 6 - beside - _LEAST)
    left = EDGE if above else EDGE + widest + 6
    gap += 5.0 if above else 0.0  # a name is nearer to its own row than to the one before
    return Rows(tuple(names), above, left, WIDTH - EDGE - beside, top, band, gap)
