"""What a report is: facts first, then sections of words, pictures and the numbers under them, then how it was made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..figures import Table

_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
FACTS, SETTINGS = "facts", "settings"  # names that the page itself has
COMMAND = "command"  # the one setting that is shown as it was typed


@dataclass(frozen=True)
class Figure:
    """A picture, its numbers, and a sentence or two on what to see in it."""

    name: str
    title: str
    svg: str
    table: Table
    words: str = ""

    def __post_init__(self) -> None:
        _check(self.name)
        if not self.svg.startswith("<svg"):
            raise ValueError(f"figure {self.name}: {self.svg[:40]!r} is not an SVG; draw it by hf_px.figures")


@dataclass(frozen=True)
class Section:
    """Paragraphs of plain text, pictures, and perhaps a table of its own."""

    name: str
    title: str
    words: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    table: Table | None = None

    def __post_init__(self) -> None:
        _check(self.name)
        _check_words(self.name, self.words)


@dataclass(frozen=True)
class Report:
    """One column of facts per ticket, the sections in their order, and the settings with the command."""

    title: str
    words: tuple[str, ...]
    facts: Table
    sections: tuple[Section, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_words("the report", self.words)
        seen = {FACTS, SETTINGS}
        for name in [s.name for s in self.sections] + [f.name for f in self.figures()]:
            if name in seen:
                raise ValueError(f"{name!r} names two parts of the report; each is a file and a link of its own")
            seen.add(name)

    def figures(self) -> Iterator[Figure]:
        for section in self.sections:
            yield from section.figures

    def tables(self) -> dict[str, Table]:
        """{name: table} of all, in the order of the page."""
        found = {FACTS: self.facts}
        for section in self.sections:
            found |= {figure.name: figure.table for figure in section.figures}
            found |= {section.name: section.table} if section.table else {}
        return found


def is_slug(name: object) -> bool:
    """Fit for a link and for a file's name: lower case, digits, single dashes."""
    return isinstance(name, str) and len(name) <= 80 and _SLUG.fullmatch(name) is not None


def _check(name: str) -> None:
    if not is_slug(name):
        raise ValueError(f"{name!r:.100} cannot name a part of a report; use a-z, 0-9 and single dashes")


def _check_words(name: str, words: object) -> None:
    if isinstance(words, str):  # a str is a sequence too: each letter would be a paragraph
        raise TypeError(f"{name}: words are paragraphs; give a tuple of texts, not one text")
