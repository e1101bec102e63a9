"""The report as GitHub's Markdown: pictures by reference, tables under them."""

from __future__ import annotations

from ..core.text import plain
from ..figures import Table
from ..figures.table import cell
from .document import COMMAND, Report
from .html import shown

_FEW = 12  # rows: of more, a table is folded
_MANY = 200  # of more, it lies beside
_LONGEST = 5000


def markdown(report: Report) -> str:
    """The same words, pictures and numbers as the page, in the same order."""
    parts = [f"# {_text(report.title)}", *map(_text, report.words), "## Facts", report.facts.markdown()]
    for section in report.sections:
        parts += [f"## {_text(section.title)}", *map(_text, section.words)]
        for figure in section.figures:
            parts += [f"### {_text(figure.title)}", f"![{_text(figure.title)}](figures/{figure.name}.svg)"]
            parts += [_text(figure.words)] if figure.words else []
            parts.append(_table(figure.table, figure.name))
        parts += [_table(section.table, section.name)] if section.table else []
    parts.append("## How it was made")
    if report.settings.get(COMMAND):
        parts.append(_code(str(report.settings[COMMAND])))
    rows = tuple((name, shown(value)) for name, value in sorted(report.settings.items()) if name != COMMAND)
    parts += [_table(Table(("setting", "value"), rows))] if rows else []
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _table(table: Table, name: str = "") -> str:
    if name and len(table.rows) > _MANY:
        return f"The numbers, in {len(table.rows):,} rows: [tables/{name}.csv](tables/{name}.csv)"
    text = table.markdown()
    if len(table.rows) <= _FEW:
        return text
    return f"<details><summary>The numbers, in {len(table.rows)} rows</summary>\n\n{text}\n</details>"


def _text(words: str) -> str:
    """A paragraph that is one: no heading, list, link or tag."""
    escaped = cell(plain(words, _LONGEST))
    first = escaped[:1]
    if first in "#+-=>" and first:
        return f"&#{ord(first)};{escaped[1:]}"
    number = escaped.split(" ", 1)[0]
    if number[:-1].isdecimal() and number[-1:] in (".", ")"):  # else it is the first of a list
        return escaped.replace(number, f"{number[:-1]}&#{ord(number[-1])};", 1)
    return escaped


def _code(words: str) -> str:
    """Behind a fence that is longer than any in it."""
    text = plain(words, _LONGEST)
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
