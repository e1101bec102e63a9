"""Boxes and thresholds lie where the ticks say."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.svg import FIVE, ROWS, SVG, having, near, outside, placed, root, ruler, size

from hf_px.figures import draw_boxes


@settings(max_examples=60, deadline=None)
@given(fives=st.lists(st.lists(st.floats(allow_nan=False), min_size=5, max_size=5), max_size=4))
def test_any_quantiles_give_boxes_inside(fives: list[list[float]]) -> None:
    values = [tuple(sorted(five)) for five in fives]
    svg = draw_boxes([f"l{i}" for i in range(len(values))], values, name="a", title="t", x="x", alt="", threshold=1.0)
    assert outside(svg) == []
    wide = size(root(svg))[0]
    for box in having(root(svg), "box"):
        assert float(box.get("x")) >= 0 and float(box.get("x")) + float(box.get("width")) <= wide


def test_boxes_lie_where_the_ticks_say_and_thresholds_too() -> None:
    fives = [tuple(10.0 ** (q - i) for q in (-6, -4, -3, -2, 0)) for i in range(6)]
    svg = root(draw_boxes(ROWS, fives, name="px", title="t", x="score", alt="", threshold=1e-5))
    place = ruler(svg, "tick", True)
    for five, box, at in zip(fives, [b for b in having(svg, "box") if b in list(svg)], placed(svg, 0)):
        start, wide = float(box.get("x")), float(box.get("width"))
        assert (start, start + wide, at[0]) == pytest.approx((place(five[1]), place(five[3]), place(five[2])), abs=0.05)
    whiskers = [e.get("d") for e in svg if e.get("class") == "line s0"]
    ends = [tuple(float(x) for x in re.fullmatch(r"M(\S+) \S+H(\S+)", d).groups()) for d in whiskers]
    assert near(ends, [(place(f[0]), place(f[4])) for f in fives])
    (mark,) = [e for e in svg if e.tag == f"{SVG}line" and e.get("class") == "line s5"]
    assert float(mark.get("x1")) == pytest.approx(place(1e-5), abs=0.05)
    assert {"px", "threshold at 1e-05"} <= {e.text for e in svg.iter(f"{SVG}text")}


def test_a_quantile_of_zero_goes_off_the_logarithmic_axis() -> None:
    svg = root(
        draw_boxes(["a", "b", "c"], [(0, 0, 1e-3, 1e-2, 1), FIVE, (0,) * 5], name="px", title="t", x="score", alt="")
    )
    assert len(having(svg, "box")) == 2  # a layer of zeros alone has no box
    arrows = [e for e in svg if e.get("class") == "line s0" and "l-4 3" in e.get("d")]
    assert len(arrows) == 1
