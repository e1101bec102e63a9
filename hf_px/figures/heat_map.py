"""A heat map: a square matrix in [0, 1], such as the overlap of masks, with its numbers in the cells."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from .frame import EDGE, INNER, LINE, heading, picture
from .text import SIZE, SMALL, clean, escape, middle, number, text, width

_MOST = 12  # names: with more, a number does not fit its cell
_LEVELS = 20
_LARGEST = 64.0
# from none to all, (light, dark); each starts near its ground
_RAMPS = (((0xEE, 0xF3, 0xF8), (0x05, 0x3B, 0x6E)), ((0x1F, 0x27, 0x30), (0x8F, 0xD0, 0xF7)))
_INKS = ("#000000", "#ffffff")


def heatmap(names: Sequence[str], values: Sequence[Sequence[float | None]], *, title: str, alt: str = "") -> str:
    """values[i][j] in row i and column j; rows and columns go by number, and the key says which is which."""
    if len(values) != len(names) or any(len(row) != len(names) for row in values):
        raise ValueError(f"{len(names)} names, but {len(values)} rows of {sorted({len(r) for r in values})} values")
    for name, row in zip(names, values):
        if odd := [v for v in row if v is not None and not math.isnan(v) and not 0 <= v <= 1]:
            raise ValueError(f"{name}: {odd[0]} is not in [0, 1]; a heat map shows shares")
    n = len(names)
    body, top = heading(title)
    edge = max(width(str(n)), 8.0) + 6
    cell = min(_LARGEST, (INNER - edge) / max(n, 1))
    left = EDGE + edge
    small, size = ("", SIZE) if cell >= 27 else (" small", SMALL)
    every = math.ceil((width(str(n)) + 4) / cell)  # of the numbers beside the cells, so that none touch

    for i, name in enumerate(names):
        words = f"{i + 1}  {clean(name)}"
        shown = middle(clean(name), INNER - edge)
        body.append(text(str(i + 1), EDGE + edge - 6, top + 12, style="dim", anchor="end"))
        body.append(text(shown, left, top + 12, style="name", title=words if shown != clean(name) else ""))
        top += LINE
    top += 10
    for i in range(0, n, every):
        body.append(text(str(i + 1), left + cell * (i + 0.5), top + 10, style="dim", anchor="middle"))
    top += 15
    for i, row in enumerate(values):
        y = top + cell * i
        if i % every == 0:
            body.append(text(str(i + 1), left - 6, y + cell / 2 + 4, style="dim", anchor="end"))
        for j, value in enumerate(row):
            known = value is not None and not math.isnan(value)
            level = f"q{round(value * _LEVELS)}" if known and value is not None else "none"
            said = f"{value:.4f}" if known else "not known"
            hint = escape(f"{clean(names[i])} and {clean(names[j])}: {said}")
            x = left + cell * j
            body.append(
                f'<rect class="cell gap {level}" x="{number(x)}" y="{number(y)}" width="{number(cell)}" '
                f'height="{number(cell)}"><title>{hint}</title></rect>'
            )
            if n <= _MOST:
                inside = f"{value:.2f}" if known else "–"
                body.append(
                    text(inside, x + cell / 2, y + cell / 2 + 4, style=f"in {level}{small}", anchor="middle", size=size)
                )
    top += cell * n + 8
    step = 120 / (_LEVELS + 1)
    body.append(text("0", left, top + 10, style="dim"))
    for i in range(_LEVELS + 1):
        start = number(left + 12 + step * i)
        body.append(f'<rect class="q{i}" x="{start}" y="{number(top + 1)}" width="{number(step + 0.3)}" height="10"/>')
    body.append(text("1", left + 138, top + 10, style="dim"))
    alt = alt or f"A matrix of numbers from 0 to 1 between {', '.join(names)}."
    return picture(body, top + 20, title=title, alt=alt, more=_rules())


def ramp(level: int, theme: int) -> tuple[int, int, int]:
    low, high = _RAMPS[theme]
    share = level / _LEVELS
    return tuple(round(a + (b - a) * share) for a, b in zip(low, high))  # type: ignore[return-value]


@functools.cache
def _rules() -> str:
    def rules(theme: int) -> str:
        found = [".hfpx rect.none{fill:none}"]
        for level in range(_LEVELS + 1):
            colour = ramp(level, theme)
            # one of black and white has a contrast of 4.58 or more with any colour
            ink = _INKS[luminance(colour) < 0.179]
            found.append(f".hfpx rect.q{level}{{fill:rgb{colour}}}.hfpx text.q{level}{{fill:{ink}}}".replace(" ", ""))
        return "\n".join(rule.replace(".hfpxrect", ".hfpx rect").replace(".hfpxtext", ".hfpx text") for rule in found)

    return f"{rules(0)}\n@media screen and (prefers-color-scheme:dark){{\n{rules(1)}\n}}\n"


def luminance(colour: tuple[int, int, int]) -> float:
    """WCAG's relative luminance."""
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
