"""One row per layer, from input to output, with its name at the left, or above the row if names are long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .frame import EDGE, INNER, WIDTH, x_ticks
from .scale import ChartScale
from .svg_text import TEXT_SIZE, cut_front, one_line, text_line, text_width

_WIDEST_NAME = 175.0  # units; blocks.11.attn.qkv.weight fits
_NARROWEST_PLOT = 90.0
_MANY = 25  # rows; with more, the tick labels are repeated below


@dataclass(frozen=True)
class LayerRows:
    """Layer i is drawn around middle(i), between left and right."""

    names: tuple[str, ...]
    names_above: bool
    left: float
    right: float
    top: float
    band: float  # height of what is drawn
    gap: float  # between two layers

    @property
    def step(self) -> float:
        return self.band + self.gap + (TEXT_SIZE + 2 if self.names_above else 0)

    @property
    def bottom(self) -> float:
        return self.top + self.step * len(self.names)

    def middle(self, i: int) -> float:
        return self.top + self.step * (i + 1) - (self.band + self.gap) / 2

    def draw_axis(self, scale: ChartScale, above: float) -> tuple[list[str], float]:
        """Vertical rules with labels, the names of the layers, and the y coordinate where all this ends."""
        ticks = scale.ticks(4 if self.right - self.left < 200 else 6)
        found = x_ticks(scale, ticks, self.top - above, self.bottom + 2, self.top - above - 4)
        end = self.bottom + 10
        if len(self.names) > _MANY:
            found += x_ticks(scale, ticks, self.bottom, self.bottom + 2, self.bottom + 14)
            end += 12
        return found + self._labels(), end

    def _labels(self) -> list[str]:
        found = []
        for i, name in enumerate(map(one_line, self.names)):
            if self.names_above:
                baseline = self.middle(i) - self.band / 2 - 3
                found.append(text_line(cut_front(name, INNER), EDGE, baseline, style="name", title=name))
            else:
                shown, baseline = cut_front(name, self.left - EDGE), self.middle(i) + 4
                found.append(text_line(shown, self.left - 6, baseline, style="name", anchor="end", title=name))
        return found


def layer_rows(names: Sequence[str], top: float, band: float, *, beside: float = 0.0, gap: float = 4.0) -> LayerRows:
    """`beside` units stay free at the right, for numbers."""
    widest = max((text_width(one_line(name)) for name in names), default=0.0)
    above = widest > min(_WIDEST_NAME, INNER - 6 - beside - _NARROWEST_PLOT)
    left = EDGE if above else EDGE + widest + 6
    gap += 5.0 if above else 0.0  # a name must be nearer to its own row than to the one before
    return LayerRows(tuple(names), above, left, WIDTH - EDGE - beside, top, band, gap)
