"""Text in a picture: how wide it is at most, where it is cut or broken, and how it is escaped."""

from __future__ import annotations

import html

from ..core.text import plain

SIZE = 11.0  # units; a picture is about as many units wide as a phone has pixels
SMALL = 10.0  # where there is no room for more
_BOLD = 1.16
_LONGEST = 200
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


def width(text: str, size: float = SIZE, bold: bool = False) -> float:
    """At most so many units, in any face that a browser is likely to choose."""
    return sum(_WIDTHS.get(letter, _UNKNOWN) for letter in text) * size * (_BOLD if bold else 1)


def clean(text: object, longest: int = _LONGEST) -> str:
    """A stranger's word without control characters, in one line; not escaped yet."""
    return plain(text, longest)


def escape(text: object, longest: int = 1000) -> str:
    """Fit for an element or an attribute."""
    return html.escape(plain(text, longest), quote=True)


def front(text: str, most: float, size: float = SIZE) -> str:
    """Cut in front, where layers of one network are alike: …attention.output.dense.weight."""
    if width(text, size) <= most:
        return text
    kept = text
    while kept and width(f"…{kept}", size) > most:
        kept = kept[1:]
    return f"…{kept}"


def middle(text: str, most: float, size: float = SIZE) -> str:
    """Cut in the middle: of repositories, the end tells one run from another."""
    if width(text, size) <= most:
        return text
    start, end = text[: len(text) // 2], text[len(text) // 2 :]
    while (start or end) and width(f"{start}…{end}", size) > most:
        if width(start, size) > width(end, size):
            start = start[:-1]
        else:
            end = end[1:]
    return f"{start}…{end}"


def back(text: str, most: float, size: float = SIZE, bold: bool = False) -> str:
    """Cut at the end."""
    if width(text, size, bold) <= most:
        return text
    kept = text
    while kept and width(f"{kept}…", size, bold) > most:
        kept = kept[:-1]
    return f"{kept.rstrip()}…"


def wrap(text: str, most: float, size: float = SIZE, bold: bool = False, lines: int = 3) -> list[str]:
    """In lines that are no wider; what does not fit in the last one is cut."""
    found: list[str] = []
    words = text.split()
    while words and len(found) < lines - 1:
        line = words.pop(0)
        while words and width(f"{line} {words[0]}", size, bold) <= most:
            line = f"{line} {words.pop(0)}"
        found.append(back(line, most, size, bold))
    return [*found, back(" ".join(words), most, size, bold)] if words else found


def text(
    words: str,
    x: float,
    y: float,
    *,
    style: str = "",
    anchor: str = "start",
    size: float = SIZE,
    bold: bool = False,
    title: str = "",
) -> str:
    """One line of text at its baseline; where it has letters of unknown width, it is pressed into its estimate."""
    told = f' class="{style}"' if style else ""
    told += f' text-anchor="{anchor}"' if anchor != "start" else ""
    if any(letter not in _WIDTHS for letter in words):
        told += f' textLength="{number(width(words, size, bold))}" lengthAdjust="spacingAndGlyphs"'
    inside = f"<title>{escape(title)}</title>" if title and title != words else ""
    return f'<text x="{number(x)}" y="{number(y)}"{told}>{html.escape(words)}{inside}</text>'


def number(value: float) -> str:
    """A coordinate: two decimals are a hundredth of a pixel, and the last digits of a logarithm differ by machine."""
    short = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if short == "-0" else short
