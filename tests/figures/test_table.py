"""Tables as CSV, JSON records, Markdown and text."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.svg import HOSTILE

from hf_px.figures import Table

cells = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)


@example([("a\rb", "a\nb"), ('"', ","), (None, "\r")])
@given(st.lists(st.tuples(cells, cells), max_size=5))
def test_csv_and_records_hold_the_very_numbers(rows: list[tuple]) -> None:
    table = Table(("a", "b"), tuple(rows))
    read = list(csv.reader(io.StringIO(table.csv(), newline="")))
    assert read[0] == ["a", "b"]
    assert read[1:] == [["" if c is None else str(c) for c in row] for row in rows]
    finite = [[None if isinstance(c, float) and not math.isfinite(c) else c for c in row] for row in rows]
    assert [list(r.values()) for r in json.loads(json.dumps(table.records(), allow_nan=False))] == finite


def test_a_table_is_shown_by_its_formats() -> None:
    table = Table(
        ("layer", "kept", "share", "loss"),
        (("a", 12345, 0.5, 1 / 3), ("b", None, 1, math.inf)),
        ("", ",d", ".2%", ".4g"),
    )
    assert table.shown() == (("a", "12,345", "50.00%", "0.3333"), ("b", "–", "100.00%", "∞"))
    assert table.numeric() == (False, True, True, True)
    assert table.csv() == "layer,kept,share,loss\na,12345,0.5,0.3333333333333333\nb,,1,inf\n"
    assert table.markdown().splitlines()[:3] == [
        "| layer | kept | share | loss |",
        "| --- | ---: | ---: | ---: |",
        "| a | 12,345 | 50.00% | 0.3333 |",
    ]


@given(st.text(max_size=40))
def test_no_name_ends_a_cell_or_starts_a_link_or_a_tag(name: str) -> None:
    (row,) = Table(("a",), ((name,),)).markdown().splitlines()[2:]
    assert row.count("|") == 2 and not set(re.sub(r"&#\d+;", "", row)) & set("<>&`*[]\\_@")


def test_hostile_names_in_markdown() -> None:
    text = Table(("a",), ((f"{HOSTILE} [x](https://evil) www.evil.org a@b.c\n| b |",),)).markdown()
    assert len(text.splitlines()) == 3 and "<" not in text and "https:" not in text and "www." not in text


@pytest.mark.parametrize(
    ("make", "error", "complaint"),
    [
        (lambda: Table(("a", "b"), ((1,),)), ValueError, "row 0 has 1 cells, the head has 2"),
        (lambda: Table(("a",), ((1.5,),), (",d",)), ValueError, "column 'a': 1.5 cannot be formatted with ',d'"),
        (lambda: Table(("a",), (), ("", "")), ValueError, "2 formats for 1 columns"),
        (lambda: Table(("a", "a"), ()), ValueError, "have the same name"),
        (lambda: Table(("a",), ((object(),),)), TypeError, "column 'a' holds a object"),
    ],
)
def test_a_table_that_is_none_is_an_error(make: Callable[[], Table], error: type, complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        make()
