"""Text for a terminal, a picture or a table: untrusted words made safe, lists of names cut short, plain-text tables."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

LONGEST = 60


def plain(text: object, longest: int = LONGEST) -> str:
    """Untrusted text as one printable line of at most `longest` characters.

    Control characters can clear a terminal, and bidirectional marks can reorder what is shown; both are dropped.
    """
    start = str(text)[: 10 * longest]  # a word of a gigabyte is not scanned to its end
    spaced = (" " if letter.isspace() else letter for letter in start)
    # category C: control and format characters, and code points without a character
    words = " ".join("".join(letter for letter in spaced if unicodedata.category(letter)[0] != "C").split())
    return words if len(words) <= longest else f"{words[: longest - 1]}…"


def name_list(names: Iterable[object], most: int = 4) -> str:
    """ "a, b, c, d, …": the first `most` names."""
    words = [str(name) for name in names]
    return ", ".join(words[:most]) + (", …" if len(words) > most else "")


def text_table(rows: Sequence[Sequence[str]], left: Iterable[int] = (0,), rule: bool = False) -> str:
    """Rows as aligned columns. Columns in `left` are flush left, the others flush right; `rule` underlines the head."""
    left = set(left)
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [rows[0], *([["-" * width for width in widths]] if rule else []), *rows[1:]]

    def aligned(line: Sequence[str]) -> str:
        cells = (cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths)))
        return "  ".join(cells).rstrip()

    return "\n".join(map(aligned, lines))
