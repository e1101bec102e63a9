"""A heat map: a square matrix of values in [0, 1], such as the overlap of masks, with the numbers in its cells."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .frame import EDGE, INNER, LINE, heading, in_both_themes, rect_attributes, svg_document
from .svg_text import SMALL_SIZE, TEXT_SIZE, cut_middle, escape, one_line, text_line, text_width

_MOST_WITH_NUMBERS = 12  # names; with more, a number does not fit its cell
_LEVELS = 20
_LARGEST_CELL = 64.0
# colours of 0 and 1, (light, dark); 0 is near the background
_RAMPS = (((0xEE, 0xF3, 0xF8), (0x05, 0x3B, 0x6E)), ((0x1F, 0x27, 0x30), (0x8F, 0xD0, 0xF7)))
_INKS = ("#000000", "#ffffff")


def draw_heatmap(names: Sequence[str], values: Sequence[Sequence[float | None]], *, title: str, alt: str) -> str:
    """values[i][j] in row i and column j; rows and columns are numbered, and a key above has the names."""
    n = len(names)
    widest = text_width(str(n))
    left = EDGE + max(widest, 8.0) + 6
    side = min(_LARGEST_CELL, (EDGE + INNER - left) / max(n, 1))
    every = math.ceil((widest + 4) / side)  # numbers beside the cells must not touch

    body, top = heading(title)
    for i, name in enumerate(map(one_line, names)):
        shown = cut_middle(name, EDGE + INNER - left)
        body.append(text_line(str(i + 1), left - 6, top + 12, style="dim", anchor="end"))
        tooltip = f"{i + 1}  {name}" if shown != name else ""
        body.append(text_line(shown, left, top + 12, style="name", title=tooltip))
        top += LINE
    top += 10
    for i in range(0, n, every):
        body.append(text_line(str(i + 1), left + side * (i + 0.5), top + 10, style="dim", anchor="middle"))
    top += 15
    for i, row in enumerate(values):
        y = top + side * i
        if i % every == 0:
            body.append(text_line(str(i + 1), left - 6, y + side / 2 + 4, style="dim", anchor="end"))
        for j, value in enumerate(row):
            pair = f"{one_line(names[i])} and {one_line(names[j])}"
            body += _cell(value, left + side * j, y, side, pair, n <= _MOST_WITH_NUMBERS)
    top += side * n + 8
    body += _colour_key(left, top)
    return svg_document(body, top + 20, title=title, alt=alt, more_rules=in_both_themes(_colour_rules))


def _cell(value: float | None, x: float, y: float, side: float, pair: str, with_number: bool) -> list[str]:
    known = value is not None and not math.isnan(value)
    level = f"q{round(value * _LEVELS)}" if known and value is not None else "none"
    tooltip = escape(f"{pair}: {value:.4f}" if known else f"{pair}: not known")
    box = rect_attributes(x, y, side, side)
    drawn = [f'<rect class="cell gap {level}" {box}><title>{tooltip}</title></rect>']
    if with_number:
        small, size = ("", TEXT_SIZE) if side >= 27 else (" small", SMALL_SIZE)
        number = f"{value:.2f}" if known else "–"
        at = x + side / 2, y + side / 2 + 4
        drawn.append(text_line(number, *at, style=f"in {level}{small}", anchor="middle", size=size))
    return drawn


def _colour_key(left: float, top: float) -> list[str]:
    step = 120 / (_LEVELS + 1)
    drawn = [text_line("0", left, top + 10, style="dim")]
    for i in range(_LEVELS + 1):
        box = rect_attributes(left + 12 + step * i, top + 1, step + 0.3, 10)
        drawn.append(f'<rect class="q{i}" {box}/>')
    return [*drawn, text_line("1", left + 138, top + 10, style="dim")]


def level_colour(level: int, theme: int) -> tuple[int, int, int]:
    low, high = _RAMPS[theme]
    share = level / _LEVELS
    return tuple(round(a + (b - a) * share) for a, b in zip(low, high))  # type: ignore[return-value]


def _colour_rules(theme: int) -> list[str]:
    rules = [".hfpx rect.none{fill:none}"]
    for level in range(_LEVELS + 1):
        colour = level_colour(level, theme)
        ink = _INKS[_luminance(colour) < 0.179]  # black or white: one of them has a contrast of at least 4.58
        rgb = ",".join(map(str, colour))
        rules.append(f".hfpx rect.q{level}{{fill:rgb({rgb})}}.hfpx text.q{level}{{fill:{ink}}}")
    return rules


def _luminance(colour: tuple[int, int, int]) -> float:
    """Relative luminance as WCAG defines it."""
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
