"""The frame of every figure: size, light and dark theme, colours with their marker shapes, legend, x-axis ticks.

Every CSS rule starts with .hfpx and nothing has an id, so a page may hold many figures, each with its own style sheet.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .scale import ChartScale
from .svg_text import (
    SMALL_SIZE,
    TEXT_SIZE,
    coordinate,
    cut_end,
    cut_middle,
    escape,
    one_line,
    text_line,
    text_width,
    wrap,
)  # fmt: skip

WIDTH = 344.0  # units; on a phone of 360 pixels with margins of 8, a unit is a pixel
EDGE = 10.0
INNER = WIDTH - 2 * EDGE
LINE = 15.0  # from one baseline to the next
_PIXELS_PER_UNIT = 1.5  # where the page does not set a width
_TITLE_SIZE = 13.0

# Okabe and Ito's palette, which colour-blind readers can tell apart, without yellow; brown replaces orange on white,
# where orange has too little contrast
LIGHT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a4a00", "#1f2328")
DARK = ("#56b4e9", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#e6edf3")
# (light, dark)
THEME = {
    "ground": ("#ffffff", "#14181d"),
    "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#59636e", "#a3adb8"),
    "grid": ("#dde2e8", "#2d333b"),
    "total": ("#e6eaef", "#272d35"),
    "edge": ("#7d8793", "#77818c"),
}
_DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "4 2", "12 3", "6 2 1 2 1 2", "1 2")
_PATHS = (
    "M-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0z",  # circle
    "M-3 -3h6v6h-6z",  # square
    "M0 -4.3L3.7 2.6H-3.7z",  # triangle
    "M0 -4.4L4.4 0L0 4.4L-4.4 0z",  # diamond
    "M0 4.3L3.7 -2.6H-3.7z",  # triangle, pointing down
    "M-1.4 -4h2.8v2.6h2.6v2.8h-2.6v2.6h-2.8v-2.6h-2.6v-2.8h2.6z",  # plus
    "M-4 -2L-2 -4L0 -2L2 -4L4 -2L2 0L4 2L2 4L0 2L-2 4L-4 2L-2 0z",  # cross
    "M-2 -3.8h4l2 3.8l-2 3.8h-4l-2 -3.8z",  # hexagon
)
INK = 5  # index of the text colour in LIGHT and DARK


class SeriesStyle(NamedTuple):
    """Series differ by colour, marker shape and dashes, never by colour alone."""

    colour: int
    shape: str
    dash: str

    @property
    def dashes(self) -> str:
        return f' stroke-dasharray="{self.dash}"' if self.dash else ""


def series_style(i: int) -> SeriesStyle:
    return SeriesStyle(i % len(LIGHT), _PATHS[i % len(_PATHS)], _DASHES[i % len(_DASHES)])


def series_styles(series: Iterable[str], order: Sequence[str]) -> dict[str, SeriesStyle]:
    """Styles by position in `order`, then in `series`: figures with one `order` draw a series alike."""
    series = list(series)
    positions = {name: i for i, name in enumerate(dict.fromkeys([*order, *series]))}
    return {name: series_style(positions[name]) for name in series}


@functools.cache
def _stylesheet() -> str:
    return (
        ".hfpx{max-width:100%;height:auto}\n"
        f".hfpx text{{font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;"
        f"font-size:{coordinate(TEXT_SIZE)}px;font-weight:400;font-style:normal;letter-spacing:normal}}\n"
        f".hfpx .title{{font-size:{coordinate(_TITLE_SIZE)}px;font-weight:600}}\n"
        f".hfpx .small{{font-size:{coordinate(SMALL_SIZE)}px}}\n"
        ".hfpx path,.hfpx line{fill:none}\n"
        ".hfpx .grid,.hfpx .axis{stroke-width:1}\n"
        ".hfpx .whole{stroke-width:.6}\n"
        ".hfpx .m{stroke-width:.8}\n"
        ".hfpx .gap{stroke-width:1.6}\n"
        ".hfpx .box{fill-opacity:.3;stroke-width:1}\n"
        ".hfpx .line{stroke-width:1.6;stroke-linejoin:round}\n"
        f"{in_both_themes(_theme_rules)}"
    )


def _theme_rules(theme: int) -> list[str]:
    ground, ink, muted, grid, total, edge = (
        THEME[name][theme] for name in ("ground", "ink", "muted", "grid", "total", "edge")
    )
    return [
        f".hfpx text{{fill:{ink}}}",
        f".hfpx .dim{{fill:{muted}}}",
        f".hfpx .ground{{fill:{ground}}}",
        f".hfpx .grid{{stroke:{grid}}}",
        f".hfpx .axis{{stroke:{edge}}}",
        f".hfpx .whole{{fill:{total};stroke:{edge}}}",
        f".hfpx .m,.hfpx .gap{{stroke:{ground}}}",
        *(f".hfpx .f{i}{{fill:{c}}}.hfpx .s{i}{{stroke:{c}}}" for i, c in enumerate((LIGHT, DARK)[theme])),
    ]


def in_both_themes(rules: Callable[[int], list[str]]) -> str:
    """CSS of rules(0) for light screens and paper, and of rules(1) for dark screens."""
    light, dark = ("\n".join(rules(theme)) for theme in (0, 1))
    return f"{light}\n@media screen and (prefers-color-scheme:dark){{\n{dark}\n}}\n"


def svg_document(body: Sequence[str], height: float, *, title: str, alt: str, more_rules: str = "") -> str:
    """The SVG around what was drawn; `alt` is the text alternative."""
    box = f"0 0 {coordinate(WIDTH)} {coordinate(height)}"
    size = f'width="{coordinate(WIDTH * _PIXELS_PER_UNIT)}" height="{coordinate(height * _PIXELS_PER_UNIT)}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="hfpx" viewBox="{box}" {size} role="img">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(alt, 3000)}</desc>",
        f"<style>\n{_stylesheet()}{more_rules}</style>",
        # its own background, because a page may be dark where the system is light
        f'<rect class="ground" width="{coordinate(WIDTH)}" height="{coordinate(height)}" rx="6"/>',
    ]
    return "\n".join([*lines, *body, "</svg>\n"])


def heading(title: str) -> tuple[list[str], float]:
    """The title in up to three lines, and the y coordinate where it ends."""
    lines = wrap(one_line(title), INNER, _TITLE_SIZE, bold=True)
    found = [
        text_line(
            line, EDGE, 20 + 17 * i, style="title", size=_TITLE_SIZE, bold=True, title=title if "…" in line else ""
        )
        for i, line in enumerate(lines)
    ]
    return found, 8 + 17 * len(lines) + (4 if lines else 0)


def axis_label(text: str, y: float, anchor: str = "end") -> str:
    """The label of an axis, flush with the right edge, or with the left one for anchor "start"."""
    text = one_line(text)
    x = WIDTH - EDGE if anchor == "end" else EDGE
    return text_line(cut_end(text, INNER), x, y, style="dim", anchor=anchor, title=text)


def marker(x: float, y: float, style: SeriesStyle, title: str = "") -> str:
    inside = f"><title>{escape(title)}</title></path>" if title else "/>"
    place = f"translate({coordinate(x)} {coordinate(y)})"
    return f'<path class="m f{style.colour}" transform="{place}" d="{style.shape}"{inside}'


def line_sample(style: SeriesStyle, with_marker: bool = True) -> str:
    """A piece of line for the legend, 24 units wide."""
    return f'<path class="line s{style.colour}"{style.dashes} d="M0 0H24"/>' + marker(12, 0, style) * with_marker


def rule(x1: float, y1: float, x2: float, y2: float, style: str, dash: str = "") -> str:
    """A straight line."""
    ends = " ".join(f'{name}="{coordinate(v)}"' for name, v in (("x1", x1), ("x2", x2), ("y1", y1), ("y2", y2)))
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line class="{style}" {ends}{dashes}/>'


def rect_attributes(x: float, y: float, width: float, height: float) -> str:
    named = {"x": x, "y": y, "width": width, "height": height}
    return " ".join(f'{name}="{coordinate(value)}"' for name, value in named.items())


class LegendItem(NamedTuple):
    sample: str  # drawn at the origin
    width: float  # width of the sample
    name: str
    ending: str = ""  # after the name; it is never cut


def legend(items: Sequence[LegendItem], top: float) -> tuple[list[str], float]:
    """The items side by side in as many lines as needed, and the y coordinate where they end."""
    found: list[str] = []
    x, y = EDGE, top + 11
    for sample, width, name, ending in items:
        shown = cut_middle(one_line(name), INNER - width - 5 - text_width(ending)) + ending
        needed = width + 5 + text_width(shown)
        if x > EDGE and x + needed > WIDTH - EDGE:
            x, y = EDGE, y + LINE + 1
        found.append(f'<g transform="translate({coordinate(x)} {coordinate(y - 4)})">{sample}</g>')
        found.append(text_line(shown, x + width + 5, y, title=one_line(name) + ending))
        x += needed + 14
    return found, y + 8 if items else top


def x_ticks(
    scale: ChartScale, ticks: Sequence[tuple[float, str]], top: float, bottom: float, baseline: float
) -> list[str]:
    """Vertical rules at the ticks, and those of their labels that do not touch the one before."""
    found, free = [], -math.inf
    for value, label in sorted(ticks, key=lambda tick: scale(tick[0])):
        x, half = scale(value), text_width(label) / 2
        found.append(rule(x, top, x, bottom, "grid"))
        middle = min(max(x, half + 2), WIDTH - half - 2)
        if middle - half >= free:
            found.append(text_line(label, middle, baseline, style="dim tick", anchor="middle"))
            free = middle + half + 5
    return found
