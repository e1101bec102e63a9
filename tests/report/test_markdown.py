"""The report as Markdown."""

from __future__ import annotations

import pytest
from support.reports import TICKETS, a_report

from hf_px.report.markdown import report_markdown


def test_markdown_folds_long_tables_only() -> None:
    text = report_markdown(a_report())
    assert text.count("<details>") == text.count("</details>") == 4  # three by layer, one by rank
    assert text.startswith("# What the tickets kept")
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        *("## Facts", "## Density and width", "## Spectrum of the fixed-weight NTK", "## Scores", "## Cost"),
        "## How it was made",
    ]
    assert "| kept weights | 4,876 of 270,896 |" in text


@pytest.mark.parametrize("words", ["# not a heading", "- no list", "1. no list", "> no quote", "=== x", "12) no"])
def test_a_paragraph_stays_one(words: str) -> None:
    text = report_markdown(a_report(TICKETS[:1], words=words))
    assert not [line for line in text.splitlines() if line.startswith(words[:3])]
