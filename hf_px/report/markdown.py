"""The report as GitHub Markdown: figures as links, tables below them."""

from __future__ import annotations

from ..core.text import plain
from ..figures import Table
from ..figures.table import escape_markdown
from .document import LONGEST_PARAGRAPH, Report

_FOLDED_FROM = 12  # rows; a longer table is folded
_LINKED_FROM = 200  # rows; a longer table is only linked


def report_markdown(report: Report) -> str:
    """The same text, figures and numbers as the page, in the same order."""
    parts = [f"# {_paragraph(report.title)}", *map(_paragraph, report.paragraphs), "## Facts", report.facts.markdown()]
    for section in report.sections:
        parts += [f"## {_paragraph(section.title)}", *map(_paragraph, section.paragraphs)]
        for figure in section.figures:
            parts += [f"### {_paragraph(figure.title)}", f"![{_paragraph(figure.title)}](figures/{figure.name}.svg)"]
            parts += [_paragraph(figure.caption)] if figure.caption else []
            parts.append(_folded(figure.table, figure.name))
        parts += [_folded(section.table, section.name)] if section.table else []
    parts.append("## How it was made")
    parts += [_code_block(report.command)] if report.command else []
    parts += [_folded(report.settings_table)] if report.settings_table.rows else []
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _folded(table: Table, name: str = "") -> str:
    if name and len(table.rows) > _LINKED_FROM:
        return f"The numbers, in {len(table.rows):,} rows: [tables/{name}.csv](tables/{name}.csv)"
    text = table.markdown()
    if len(table.rows) <= _FOLDED_FROM:
        return text
    return f"<details><summary>The numbers, in {len(table.rows)} rows</summary>\n\n{text}\n</details>"


def _paragraph(text: str) -> str:
    """Escaped so that it cannot become a heading, list, link or tag."""
    escaped = escape_markdown(plain(text, LONGEST_PARAGRAPH))
    first = escaped[:1]
    if first and first in "#+-=>":
        return f"&#{ord(first)};{escaped[1:]}"
    number = escaped.split(" ", 1)[0]
    if number[:-1].isdecimal() and number[-1:] in (".", ")"):  # would start a numbered list
        return escaped.replace(number, f"{number[:-1]}&#{ord(number[-1])};", 1)
    return escaped


def _code_block(text: str) -> str:
    text = plain(text, LONGEST_PARAGRAPH)
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
