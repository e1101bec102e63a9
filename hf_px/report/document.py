"""The content of a report: facts, sections with paragraphs, figures and tables, and the settings it was made with."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..core.shareable import COMMAND
from ..figures import Table

LONGEST_PARAGRAPH = 5000  # characters
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_FACTS, _SETTINGS = "facts", "settings"  # anchors that every page has


@dataclass(frozen=True)
class Figure:
    """An SVG, the table of its numbers, and a caption."""

    name: str
    title: str
    svg: str
    table: Table
    caption: str = ""

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not self.svg.startswith("<svg"):
            raise ValueError(f"figure {self.name}: {self.svg[:40]!r} is not an SVG; draw it with hf_px.figures")


@dataclass(frozen=True)
class Section:
    """Paragraphs of plain text, figures, and optionally a table."""

    name: str
    title: str
    paragraphs: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    table: Table | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)


@dataclass(frozen=True)
class Report:
    """Facts with one column per network, sections in page order, and settings."""

    title: str
    paragraphs: tuple[str, ...]
    facts: Table
    sections: tuple[Section, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seen = {_FACTS, _SETTINGS}
        for name in [s.name for s in self.sections] + [f.name for f in self.figures()]:
            if name in seen:
                raise ValueError(f"{name!r} names two parts of the report; each needs its own file and link")
            seen.add(name)

    def figures(self) -> Iterator[Figure]:
        for section in self.sections:
            yield from section.figures

    def tables(self) -> dict[str, Table]:
        """{name: table} in page order, without the settings."""
        found = {_FACTS: self.facts}
        for section in self.sections:
            found |= {figure.name: figure.table for figure in section.figures}
            found |= {section.name: section.table} if section.table else {}
        return found

    @property
    def command(self) -> str:
        """The command line that made the report, as it was typed."""
        return str(self.settings.get(COMMAND) or "")

    @cached_property
    def settings_table(self) -> Table:
        """All settings but the command."""
        rows = [(name, _setting_text(value)) for name, value in sorted(self.settings.items()) if name != COMMAND]
        return Table(("setting", "value"), tuple(rows))


def is_slug(name: object) -> bool:
    """True if `name` can be a link and a file name: lower case, digits, single dashes."""
    return isinstance(name, str) and len(name) <= 80 and _SLUG.fullmatch(name) is not None


def json_value(value: Any) -> Any:
    """`value` as JSON can hold it, with sorted keys; anything else, nan and inf included, becomes a string."""
    if isinstance(value, Mapping):
        return {str(key): json_value(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    known = value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))
    return value if known else str(value)


def _setting_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_setting_text(value[key])}" for key in sorted(value, key=str))
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_setting_text, value))
    return value if isinstance(value, str) else json.dumps(json_value(value), ensure_ascii=False)


def _check_name(name: str) -> None:
    if not is_slug(name):
        raise ValueError(f"{name!r:.100} cannot name a part of a report; use a-z, 0-9 and single dashes")
