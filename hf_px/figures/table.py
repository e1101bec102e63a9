"""A table of numbers and text, as CSV, JSON records, Markdown, or rows of formatted text."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.text import plain

Value = str | int | float | None
_MISSING = "–"
_LONGEST = 300  # characters; text from a ticket may have any length


@dataclass(frozen=True)
class Table:
    """`formats` has a format() spec per column for shown() and markdown(); without one, floats have six digits.

    CSV and JSON keep every digit.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    formats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "head", tuple(self.head))
        object.__setattr__(self, "rows", tuple(tuple(row) for row in self.rows))
        object.__setattr__(self, "formats", tuple(self.formats))
        if self.formats and len(self.formats) != len(self.head):
            raise ValueError(f"{len(self.formats)} formats for {len(self.head)} columns; give one per column, or none")
        if len(set(self.head)) != len(self.head):
            raise ValueError(f"two columns of {self.head!r:.200} have the same name; records need different ones")
        for i, row in enumerate(self.rows):
            if len(row) != len(self.head):
                raise ValueError(f"row {i} has {len(row)} cells, the head has {len(self.head)}: {row!r:.200}")
        self.shown()  # raises here for a format that does not fit its column, not when the page is written

    def shown(self) -> tuple[tuple[str, ...], ...]:
        """The rows as formatted text."""
        formats = self.formats or ("",) * len(self.head)
        return tuple(tuple(_shown(c, f, h) for c, f, h in zip(row, formats, self.head)) for row in self.rows)

    def numeric(self) -> tuple[bool, ...]:
        """For each column, True if all its values are numbers."""
        return tuple(_numeric([row[i] for row in self.rows]) for i in range(len(self.head)))

    def csv(self) -> str:
        """The values in full precision; None is an empty cell."""
        return "".join(map(_csv, (self.head, *self.rows)))

    def records(self) -> list[dict[str, Value]]:
        """One dict per row; nan and inf, which JSON lacks, become None."""
        return [dict(zip(self.head, map(_json_number, row))) for row in self.rows]

    def markdown(self) -> str:
        """GitHub Markdown, with numbers flush right."""
        rule = ["---:" if numeric else "---" for numeric in self.numeric()]
        rows = [tuple(map(escape_markdown, row)) for row in (self.head, *self.shown())]
        return "".join(f"| {' | '.join(row)} |\n" for row in [rows[0], rule, *rows[1:]])


def escape_markdown(text: str) -> str:
    """Text that cannot end a table cell or start a link or a tag."""
    text = plain(text, _LONGEST)
    escaped = "".join(f"&#{ord(letter)};" if letter in "|<>&`*[]\\!_~@" else letter for letter in text)
    return escaped.replace("://", "&#58;//").replace("www.", "www&#46;").replace("WWW.", "WWW&#46;")


def _csv(row: Sequence[Value]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(row)  # writes floats with repr and None as an empty cell
    # not lineterminator="\n": before Python 3.13 the writer would not quote a \r, which then ends the row
    return text.getvalue().removesuffix("\r\n") + "\n"


def _shown(value: Value, spec: str, column: str) -> str:
    if value is None:
        return _MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return plain(value, _LONGEST)
    if not isinstance(value, (int, float)):
        raise TypeError(f"column {column!r} holds a {type(value).__name__}; give a str, int, float or None")
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value)).replace("inf", "∞")
    try:
        return format(value, spec or (".6g" if isinstance(value, float) else ""))
    except ValueError as error:
        raise ValueError(f"column {column!r}: {value!r} cannot be formatted with {spec!r} ({error})") from None


def _numeric(column: Sequence[Value]) -> bool:
    numbers = [isinstance(value, (int, float)) and not isinstance(value, bool) for value in column if value is not None]
    return bool(numbers) and all(numbers)


def _json_number(value: Value) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else value
