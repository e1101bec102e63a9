"""plain(text): a stranger's word made fit for a terminal, a picture or a table: printable, in one line, not long."""

from __future__ import annotations

import unicodedata

LONGEST = 60


def plain(text: object, longest: int = LONGEST) -> str:
    """Without control characters, which may clear a screen, and without those that turn the direction of writing."""
    cut = str(text)[: 10 * longest]  # the rest of a word of a gigabyte is not looked at
    spaced = (" " if letter.isspace() else letter for letter in cut)
    # C: Unicode's control and format characters, and what has no letter
    words = " ".join("".join(letter for letter in spaced if unicodedata.category(letter)[0] != "C").split())
    return words if len(words) <= longest else f"{words[: longest - 1]}…"
