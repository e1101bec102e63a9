"""A table: the numbers under a picture, as text, CSV, JSON records and Markdown; each cell is written once."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.text import plain

Cell = str | int | float | None
NOTHING = "–"
_LONGEST = 300  # what a stranger's ticket says may have any length


@dataclass(frozen=True)
class Table:
    """head + rows; formats are format() specs by column, for the text only: CSV and JSON keep every digit.

    Without one, a float is shown with six digits.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    formats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "head", tuple(self.head))
        object.__setattr__(self, "rows", tuple(tuple(row) for row in self.rows))
        object.__setattr__(self, "formats", tuple(self.formats))
        if self.formats and len(self.formats) != len(self.head):
            raise ValueError(f"{len(self.formats)} formats for {len(self.head)} columns; give one to each, or none")
        if len(set(self.head)) != len(self.head):
            raise ValueError(f"two columns of {self.head!r:.200} have one name; a record could hold only one of them")
        for i, row in enumerate(self.rows):
            if len(row) != len(self.head):
                raise ValueError(f"row {i} has {len(row)} cells, the head has {len(self.head)}: {row!r:.200}")
        self.shown()  # a format that does not suit its column is an error here, not when the page is written

    def shown(self) -> tuple[tuple[str, ...], ...]:
        """The rows as a reader sees them."""
        formats = self.formats or ("",) * len(self.head)
        return tuple(tuple(_shown(c, f, h) for c, f, h in zip(row, formats, self.head)) for row in self.rows)

    def numeric(self) -> tuple[bool, ...]:
        """By column: are there numbers in it, and nothing else?"""
        return tuple(_numeric([row[i] for row in self.rows]) for i in range(len(self.head)))

    def csv(self) -> str:
        """The raw values, in full precision; nothing is an empty cell."""
        return "".join(map(_csv, (self.head, *self.rows)))

    def records(self) -> list[dict[str, Cell]]:
        """A dict a row; what JSON has no word for, nan and inf, is None there."""
        return [dict(zip(self.head, map(_json, row))) for row in self.rows]

    def markdown(self) -> str:
        """GitHub's Markdown, numbers to the right."""
        rule = ["---:" if numeric else "---" for numeric in self.numeric()]
        rows = [tuple(map(cell, row)) for row in (self.head, *self.shown())]
        return "".join(f"| {' | '.join(row)} |\n" for row in [rows[0], rule, *rows[1:]])


def cell(text: str) -> str:
    """A text that ends neither the cell of a table nor the table, and starts no link or tag."""
    text = plain(text, _LONGEST)
    escaped = "".join(f"&#{ord(letter)};" if letter in "|<>&`*[]\\!_~@" else letter for letter in text)
    return escaped.replace("://", "&#58;//").replace("www.", "www&#46;").replace("WWW.", "WWW&#46;")


def _csv(row: Sequence[Cell]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(row)  # writes floats by repr, and None as nothing
    # not lineterminator="\n": before Python 3.13 a name with \r in it would have no quotes then, and end its row
    return text.getvalue().removesuffix("\r\n") + "\n"


def _shown(value: Cell, spec: str, column: str) -> str:
    if value is None:
        return NOTHING
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
        raise ValueError(f"column {column!r}: {value!r} cannot be shown by {spec!r} ({error})") from None


def _numeric(column: Sequence[Cell]) -> bool:
    numbers = [isinstance(value, (int, float)) and not isinstance(value, bool) for value in column if value is not None]
    return bool(numbers) and all(numbers)


def _json(value: Cell) -> Cell:
    return None if isinstance(value, float) and not math.isfinite(value) else value
