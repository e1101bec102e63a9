"""Lines, bands, error bars, crosses and levels lie where the ticks say."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.svg import SVG, draw_lines, having, near, outside, placed, root, ruler, size

from hf_px.figures import Panel, draw_panels


@settings(max_examples=60, deadline=None)
@given(points=st.lists(st.tuples(st.floats(), st.floats()), max_size=6), log_x=st.booleans(), log_y=st.booleans())
def test_any_numbers_give_lines_inside(points: list[tuple[float, float]], log_x: bool, log_y: bool) -> None:
    svg = draw_lines({"a": points, "b": []}, x="x", y="y", log_x=log_x, log_y=log_y)
    assert outside(svg) == [] and "nan" not in svg.lower().split("</style>")[1].replace("a: nan", "")
    wide, high = size(root(svg))
    assert all(0 <= x <= wide and 0 <= y <= high for x, y in placed(root(svg), 0))


@pytest.mark.parametrize("log_x", [False, True])
@pytest.mark.parametrize("log_y", [False, True])
def test_each_point_of_a_line_is_where_the_ticks_say(log_x: bool, log_y: bool) -> None:
    points = [(x, 3 * x**1.5) for x in (1, 3, 7, 20, 60, 200, 450, 700, 999)]
    svg = root(draw_lines({"px": points}, x="x", y="y", log_x=log_x, log_y=log_y))
    across, up = ruler(svg, "tick", log_x), ruler(svg, "rung", log_y)
    wanted = [(across(x), up(y)) for x, y in points]
    assert near(placed(svg, 0), wanted)
    (path,) = [e.get("d") for e in having(svg, "line", "s0") if e.tag == f"{SVG}path"]
    drawn = [tuple(map(float, p.split())) for p in re.split("[ML]", path)[1:]]
    assert near(drawn, wanted)


def test_a_spectrum_of_a_thousand_points_keeps_all_and_marks_some() -> None:
    series = {f"s{i}": [(k, 1e4 * k ** -(1 + i / 4)) for k in range(1, 1001)] for i in range(3)}
    svg = root(draw_lines(series, x="rank", y="value", log_x=True, log_y=True))
    across, up = ruler(svg, "tick", True), ruler(svg, "rung", True)
    for i, points in enumerate(series.values()):
        (path,) = [e for e in svg if e.get("class") == f"line s{i}"]
        drawn = [tuple(map(float, p.split())) for p in re.split("[ML]", path.get("d"))[1:]]
        assert near(drawn, [(across(x), up(y)) for x, y in points])
        assert 4 <= len(placed(svg, i)) <= 9 and set(placed(svg, i)) <= set(drawn)


def test_a_line_breaks_where_a_value_has_no_logarithm() -> None:
    points = [(1, 10), (2, 0), (3, 10), (4, 100), (5, math.nan), (6, 1), (7, -3), (8, math.inf), (9, 2)]
    (path,) = [e.get("d") for e in having(root(draw_lines({"a": points}, x="x", y="y", log_y=True)), "line")]
    assert [len(part.split("L")) for part in path.split("M")[1:]] == [1, 2, 1, 1]


def test_a_few_values_that_were_tried_are_the_ticks() -> None:
    svg = root(draw_lines({"px": [(t, 0.9) for t in (1, 2, 10, 100, 200)]}, x="T", y="accuracy", log_x=True))
    assert [e.text for e in having(svg, "tick")] == ["1", "2", "10", "100", "200"]


def test_bands_and_error_bars_reach_the_deviation_and_the_larger_x_is_on_the_left() -> None:
    series = {"px": [(0.64, 90, 2), (0.1, 80, 1)], "snip": [(0.64, 85, 3)]}
    panel = Panel(series, "removed", log_x=True, ticks={0.64: "36 %", 0.1: "90 %"}, reverse_x=True)
    svg = root(draw_panels([panel], title="t", alt="", y="accuracy", levels={"dense": (92, 1)}))
    up, (left, right) = ruler(svg, "rung", False), [float(e.get("x")) for e in having(svg, "tick")]
    assert [e.text for e in having(svg, "tick")] == ["36 %", "90 %"] and left < right
    dense, px = (
        [tuple(map(float, p.split())) for p in re.split("[MLZ]", e.get("d"))[1:-1]] for e in having(svg, "band")
    )
    assert near(px, [(left, up(92)), (right, up(81)), (right, up(79)), (left, up(88))])
    assert [y for _, y in dense] == pytest.approx([up(93), up(93), up(91), up(91)], abs=0.05)
    bars = [e for e in having(svg, "line", "s1") if e.tag == f"{SVG}line"]  # a single point: two caps and a line
    assert sorted(float(e.get("y1")) for e in bars) == pytest.approx([up(88), up(88), up(82)], abs=0.05)


def test_a_cross_marks_where_a_series_has_no_value_and_dots_continue_a_single_point() -> None:
    panel = Panel(
        {"px": [(1, 90), (10, 91)], "snip": [(1, 80)]}, "T", log_x=True, crosses={"snip": [10]}, dotted=["snip"]
    )
    svg = root(draw_panels([panel], title="t", alt="", y="accuracy"))
    assert "collapsed" in [e.text for e in svg.iter(f"{SVG}text")]
    (cross,) = [e for e in svg if e.get("class") == "line s1" and e.get("transform")]
    x, y = map(float, re.findall(r"[\d.]+", cross.get("transform")))
    assert x == pytest.approx(ruler(svg, "tick", True)(10), abs=0.05)
    assert y == max(float(e.get("y2")) for e in having(svg, "axis"))
    (dots,) = [e for e in svg if e.tag == f"{SVG}line" and e.get("class") == "line s1"]
    assert float(dots.get("y1")) == pytest.approx(ruler(svg, "rung", False)(80), abs=0.05)


def test_nothing_to_draw_is_said() -> None:
    for series in ({}, {"a": []}, {"a": [(1.0, -1.0)]}):
        assert "no numbers to draw" in draw_lines(series, x="x", y="y", log_y=True)
