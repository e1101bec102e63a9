"""The frame of every picture: its size, its two themes, its colours with their shapes, and the legend.

Nothing here has an id, and every rule is under .hfpx: many pictures on one page, each with its own copy of the style,
are as one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .axis import Axis
from .text import SIZE, SMALL, clean, escape, middle, number, text, width, wrap

WIDTH = 344.0  # units: at 360 pixels, with a margin of 8, a unit is a pixel
EDGE = 10.0
INNER = WIDTH - 2 * EDGE
_SHOWN = 1.5  # pixels a unit where nothing says how wide a picture is to be
_TITLE = 13.0
LINE = 15.0  # from one baseline to the next

# Okabe and Ito's, told apart by colour-blind readers, without yellow; on white, orange has too little contrast: brown
LIGHT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a4a00", "#1f2328")
DARK = ("#56b4e9", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#e6edf3")
# (light, dark)
THEME = {
    "ground": ("#ffffff", "#14181d"),
    "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#59636e", "#a3adb8"),
    "grid": ("#dde2e8", "#2d333b"),
    "whole": ("#e6eaef", "#272d35"),
    "edge": ("#7d8793", "#77818c"),
}
_DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "4 2", "12 3", "6 2 1 2 1 2", "1 2")
_PATHS = (
    "M-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0z",  # circle
    "M-3 -3h6v6h-6z",  # square
    "M0 -4.3L3.7 2.6H-3.7z",  # triangle
    "M0 -4.4L4.4 0L0 4.4L-4.4 0z",  # diamond
    "M0 4.3L3.7 -2.6H-3.7z",  # triangle, on its head
    "M-1.4 -4h2.8v2.6h2.6v2.8h-2.6v2.6h-2.8v-2.6h-2.6v-2.8h2.6z",  # plus
    "M-4 -2L-2 -4L0 -2L2 -4L4 -2L2 0L4 2L2 4L0 2L-2 4L-4 2L-2 0z",  # cross
    "M-2 -3.8h4l2 3.8l-2 3.8h-4l-2 -3.8z",  # hexagon
)
INK = 5  # of the colours


class Key(NamedTuple):
    """How a series is drawn: never by colour alone."""

    colour: int
    shape: str
    dash: str


def key(i: int) -> Key:
    return Key(i % len(LIGHT), _PATHS[i % len(_PATHS)], _DASHES[i % len(_DASHES)])


def keys(series: Iterable[str], order: Sequence[str] = ()) -> dict[str, Key]:
    """By place in `order`, then by place among the rest: pictures of one order draw a series alike."""
    found = list(series)
    places = {name: i for i, name in enumerate(dict.fromkeys([*order, *found]))}
    return {name: key(places[name]) for name in found}


def mark_keys(series: Mapping[str, Key], marks: Mapping[str, float]) -> dict[str, Key]:
    """A mark is drawn like the series of its name; others in ink, by shapes and dashes that no series has."""
    used = set(series.values())
    spare = iter(k for i in range(len(series) + len(marks)) if (k := key(i)) not in used)
    return {name: series[name] if name in series else next(spare)._replace(colour=INK) for name in marks}


@functools.cache
def style() -> str:
    """One for all pictures."""
    ground, ink, muted, grid, whole, edge = (
        THEME[name] for name in ("ground", "ink", "muted", "grid", "whole", "edge")
    )

    def rules(theme: int) -> str:
        colours = (LIGHT, DARK)[theme]
        found = [
            f".hfpx text{{fill:{ink[theme]}}}",
            f".hfpx .dim{{fill:{muted[theme]}}}",
            f".hfpx .ground{{fill:{ground[theme]}}}",
            f".hfpx .grid{{stroke:{grid[theme]}}}",
            f".hfpx .axis{{stroke:{edge[theme]}}}",
            f".hfpx .whole{{fill:{whole[theme]};stroke:{edge[theme]}}}",
            f".hfpx .m,.hfpx .gap{{stroke:{ground[theme]}}}",
            *(f".hfpx .f{i}{{fill:{c}}}.hfpx .s{i}{{stroke:{c}}}" for i, c in enumerate(colours)),
        ]
        return "\n".join(found)

    return (
        ".hfpx{max-width:100%;height:auto}\n"
        f".hfpx text{{font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;font-size:{number(SIZE)}px;"
        "font-weight:400;font-style:normal;letter-spacing:normal}\n"
        f".hfpx .title{{font-size:{number(_TITLE)}px;font-weight:600}}\n"
        f".hfpx .small{{font-size:{number(SMALL)}px}}\n"
        ".hfpx path,.hfpx line{fill:none}\n"
        ".hfpx .grid,.hfpx .axis{stroke-width:1}\n"
        ".hfpx .whole{stroke-width:.6}\n"
        ".hfpx .m{stroke-width:.8}\n"
        ".hfpx .gap{stroke-width:1.6}\n"
        ".hfpx .box{fill-opacity:.3;stroke-width:1}\n"
        ".hfpx .line{stroke-width:1.6;stroke-linejoin:round}\n"
        f"{rules(0)}\n@media screen and (prefers-color-scheme:dark){{\n{rules(1)}\n}}\n"
    )


def picture(body: Sequence[str], height: float, *, title: str, alt: str, more: str = "") -> str:
    """The whole SVG around what is drawn; `more` are rules that only this kind of picture needs."""
    size = f'width="{number(WIDTH * _SHOWN)}" height="{number(height * _SHOWN)}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="hfpx" viewBox="0 0 {number(WIDTH)} {number(height)}" {size} '
        'role="img">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(alt, 3000)}</desc>",
        f"<style>\n{style()}{more}</style>",
        # a ground of its own: a page may be dark where the system is light
        f'<rect class="ground" width="{number(WIDTH)}" height="{number(height)}" rx="6"/>',
    ]
    return "\n".join([*lines, *body, "</svg>\n"])


def heading(title: str) -> tuple[list[str], float]:
    """The title on top, in up to three lines, and where it ends."""
    lines = wrap(clean(title), INNER, _TITLE, bold=True)
    found = [
        text(line, EDGE, 20 + 17 * i, style="title", size=_TITLE, bold=True, title=title if "…" in line else "")
        for i, line in enumerate(lines)
    ]
    return found, 8 + 17 * len(lines) + (4 if lines else 0)


def marker(x: float, y: float, of: Key, title: str = "") -> str:
    inside = f"><title>{escape(title)}</title></path>" if title else "/>"
    return f'<path class="m f{of.colour}" transform="translate({number(x)} {number(y)})" d="{of.shape}"{inside}'


class Item(NamedTuple):
    """Of a legend: what is drawn at the origin, how wide that is, the name, and an ending that is never cut."""

    drawn: str
    wide: float
    name: str
    ending: str = ""


def legend(items: Sequence[Item], top: float) -> tuple[list[str], float]:
    """Side by side, in as many lines as it takes; and where it ends."""
    found: list[str] = []
    x, y = EDGE, top + 11
    for drawn, wide, name, ending in items:
        shown = middle(clean(name), INNER - wide - 5 - width(ending)) + ending
        takes = wide + 5 + width(shown)
        if x > EDGE and x + takes > WIDTH - EDGE:
            x, y = EDGE, y + LINE + 1
        found.append(f'<g transform="translate({number(x)} {number(y - 4)})">{drawn}</g>')
        found.append(text(shown, x + wide + 5, y, title=clean(name) + ending))
        x += takes + 14
    return found, y + 8 if items else top


def mark_line(x: float, top: float, bottom: float, of: Key, title: str) -> list[str]:
    """A named place on the horizontal axis: a line with its shape on top."""
    return [
        f'<line class="line s{of.colour}" x1="{number(x)}" x2="{number(x)}" y1="{number(top)}" y2="{number(bottom)}" '
        f'stroke-dasharray="{of.dash or "none"}"/>',
        marker(x, top, of, title),
    ]


def items(samples: Mapping[str, str], wide: float, marks: Mapping[str, float], keys: Mapping[str, Key]) -> list[Item]:
    """The series by their samples, and the marks; a mark that has a series' name stands with it."""
    if len(samples) == 1 and not marks:
        return []  # the title says what it is
    found = [Item(s, wide, name, f" (line: {marks[name]:.3g})" if name in marks else "") for name, s in samples.items()]
    for name, value in marks.items():
        if name in samples:
            continue
        of = keys[name]
        drawn = (
            f'<line class="line s{of.colour}" x1="5" x2="5" y1="-5" y2="6" stroke-dasharray="{of.dash or "none"}"/>'
            + marker(5, -4, of)
        )
        found.append(Item(drawn, 10.0, name, f" at {value:.3g}"))
    return found


def horizontal(axis: Axis, ticks: Sequence[tuple[float, str]], top: float, bottom: float, label: float) -> list[str]:
    """Vertical rules at the ticks from top to bottom, their numbers with the baseline at `label`; none touch."""
    found, free = [], -math.inf
    for value, words in ticks:
        x = axis(value)
        found.append(f'<line class="grid" x1="{number(x)}" x2="{number(x)}" y1="{number(top)}" y2="{number(bottom)}"/>')
        wide = width(words)
        middle = min(max(x, wide / 2 + 2), WIDTH - wide / 2 - 2)
        if middle - wide / 2 >= free:
            found.append(text(words, middle, label, style="dim tick", anchor="middle"))
            free = middle + wide / 2 + 5
    return found
