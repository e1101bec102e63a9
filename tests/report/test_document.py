"""What is not a valid report is named."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.reports import a_report

from hf_px.figures import Table
from hf_px.report import Figure, Section


@pytest.mark.parametrize(
    ("make", "error", "complaint"),
    [
        (lambda: Figure("A b", "t", "<svg/>", Table((), ())), ValueError, "'A b' cannot name a part"),
        (lambda: Figure("../x", "t", "<svg/>", Table((), ())), ValueError, "cannot name a part"),
        (lambda: Figure("a", "t", "<p>", Table((), ())), ValueError, "figure a: '<p>' is not an SVG"),
        (lambda: replace(a_report(), sections=a_report().sections[:1] * 2), ValueError, "'density' names two parts"),
        (lambda: replace(a_report(), sections=(Section("facts", "t"),)), ValueError, "'facts' names two parts"),
    ],
)
def test_what_is_no_report_is_named(make: Callable[[], object], error: type, complaint: str) -> None:
    with pytest.raises(error, match=re.escape(complaint)):
        make()
