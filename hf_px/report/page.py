"""The report as one HTML page without script or network: page.html.jinja filled in, page.css inside it.

Names in a report come from tickets that anyone may have written. Every `{{ … }}` of the template is therefore reduced
to one printable line and escaped; what is marked `|safe` is left alone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..core.text import plain
from .document import LONGEST_PARAGRAPH, Figure, Report

_HERE = Path(__file__).parent


def page_html(report: Report) -> str:
    """Equal reports give equal pages."""
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    return _templates().get_template("page.html.jinja").render(report=report, style=style)


@functools.cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else plain(value, LONGEST_PARAGRAPH),
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["figure_columns"] = _figure_columns
    return environment


def _figure_columns(figures: Sequence[Figure]) -> list[Sequence[Figure]]:
    """At most two columns, split so that the taller one is as short as possible."""
    if len(figures) < 2:
        return [figures] if figures else []
    heights = [_height(figure.svg) for figure in figures]
    split = min(range(1, len(figures)), key=lambda i: max(sum(heights[:i]), sum(heights[i:])))
    return [figures[:split], figures[split:]]


def _height(svg: str) -> float:
    found = re.search(r'viewBox="0 0 [0-9.]+ ([0-9.]+)"', svg[:500])
    return float(found[1]) + 50 if found else 300.0  # 50 for the caption
