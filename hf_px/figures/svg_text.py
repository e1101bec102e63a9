"""Text in an SVG: an upper bound of its width, cutting and wrapping to a width, and escaping."""

from __future__ import annotations

import html
from collections.abc import Iterable
from itertools import chain

from ..core.text import plain

TEXT_SIZE = 11.0  # units; a figure is about as many units wide as a phone has pixels
SMALL_SIZE = 10.0
_BOLD = 1.16
_LONGEST = 200  # characters
# hundredths of an em in DejaVu Sans, about the widest face that a browser takes for sans-serif
_GROUPS = {
    30: "'IJijl",
    35: " ,./:;\\|·",
    40: "()-[]ft",
    45: "!r⁰¹²³⁴⁵⁶⁷⁸⁹",
    50: '"*_`–',
    55: "?csz⁻",
    60: "FLkvxyλ",
    65: "$0123456789EPSTYabdeghnopqu{}θσ",
    70: "ABCKRVXZ",
    75: "NU",
    80: "&DGHOQ",
    85: "#+<=>^w~×±≤≥−∞",
    90: "M",
    100: "%@Wm…—",
}
_WIDTHS = {letter: width / 100 for width, letters in _GROUPS.items() for letter in letters}
_UNKNOWN = 1.1


def text_width(text: str, size: float = TEXT_SIZE, bold: bool = False) -> float:
    """An upper bound, in units, for any sans-serif font that a browser is likely to choose."""
    return sum(_WIDTHS.get(letter, _UNKNOWN) for letter in text) * size * (_BOLD if bold else 1)


def one_line(text: object, longest: int = _LONGEST) -> str:
    """Untrusted text as one printable line, not escaped yet."""
    return plain(text, longest)


def escape(text: object, longest: int = 1000) -> str:
    """Untrusted text for an element or an attribute."""
    return html.escape(plain(text, longest), quote=True)


def cut_front(text: str, most: float) -> str:
    """Cut at the front, because the layers of one network begin alike: …attention.output.dense.weight."""
    return _first_that_fits(chain([text], (f"…{text[i:]}" for i in range(1, len(text)))), most)


def cut_end(text: str, most: float, size: float = TEXT_SIZE, bold: bool = False) -> str:
    shorter = (f"{text[:i].rstrip()}…" for i in range(len(text) - 1, 0, -1))
    return _first_that_fits(chain([text], shorter), most, size, bold)


def cut_middle(text: str, most: float) -> str:
    """Cut in the middle, because repositories of one user differ at the end."""
    start, end = text[: len(text) // 2], text[len(text) // 2 :]
    shown = text
    while (start or end) and text_width(shown) > most:
        if text_width(start) > text_width(end):
            start = start[:-1]
        else:
            end = end[1:]
        shown = f"{start}…{end}"
    return shown


def _first_that_fits(candidates: Iterable[str], most: float, size: float = TEXT_SIZE, bold: bool = False) -> str:
    return next((text for text in candidates if text_width(text, size, bold) <= most), "…")


def wrap(text: str, most: float, size: float, bold: bool) -> list[str]:
    """At most three lines of at most `most` units; the last one is cut if the text does not fit."""
    found: list[str] = []
    words = text.split()
    while words and len(found) < 2:
        line = words.pop(0)
        while words and text_width(f"{line} {words[0]}", size, bold) <= most:
            line = f"{line} {words.pop(0)}"
        found.append(cut_end(line, most, size, bold))
    return [*found, cut_end(" ".join(words), most, size, bold)] if words else found


def text_line(
    text: str,
    x: float,
    y: float,
    *,
    style: str = "",
    anchor: str = "start",
    size: float = TEXT_SIZE,
    bold: bool = False,
    title: str = "",
) -> str:
    """One line of text with its baseline at y; `title` is the tooltip, left out if it is the text itself.

    Text with characters of unknown width is compressed to its estimated width.
    """
    attributes = f' class="{style}"' if style else ""
    attributes += f' text-anchor="{anchor}"' if anchor != "start" else ""
    if any(letter not in _WIDTHS for letter in text):
        attributes += f' textLength="{coordinate(text_width(text, size, bold))}" lengthAdjust="spacingAndGlyphs"'
    tooltip = f"<title>{escape(title)}</title>" if title and title != text else ""
    return f'<text x="{coordinate(x)}" y="{coordinate(y)}"{attributes}>{html.escape(text)}{tooltip}</text>'


def coordinate(value: float) -> str:
    """Two decimals: enough to draw with, and few enough to be the same on every machine."""
    short = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if short == "-0" else short
