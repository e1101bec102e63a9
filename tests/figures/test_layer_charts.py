"""Bars, markers, boxes and thresholds by layer lie where the ticks say; long names leave room for them."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.svg import FIVE, LONG, ROWS, SVG, having, near, outside, placed, root, ruler, size

from hf_px.figures import draw_boxes, draw_layers

numbers = st.one_of(st.none(), st.floats(), st.sampled_from([0.0, -0.0, 5e-324, 1e308, -1e308, 1e16, 1e16 + 2]))


@settings(max_examples=60, deadline=None)
@given(values=st.lists(numbers, min_size=1, max_size=6), several=st.booleans(), whole=st.none() | st.floats(0.1, 1e6))
def test_any_numbers_give_layers_inside(values: list[float | None], several: bool, whole: float | None) -> None:
    series = {"a": values, **({"b": values[::-1]} if several else {})}
    svg = draw_layers([f"l{i}" for i in range(len(values))], series, title="t", x="x", alt="", total=whole)
    assert outside(svg) == []
    wide, high = size(root(svg))
    assert all(0 <= x <= wide and 0 <= y <= high for x, y in placed(root(svg), 0))
    for bar in having(root(svg), "bar"):
        assert float(bar.get("x")) >= 0 and float(bar.get("x")) + float(bar.get("width")) <= wide


def test_bars_end_where_the_ticks_say_and_lie_on_their_whole() -> None:
    values = [0.0, 3.0, 16.0, 40.0, None, 64.0]
    svg = root(draw_layers(ROWS, {"live": values}, title="t", x="units", alt="", total=64.0))
    place = ruler(svg, "tick", False)
    bars = {b[0].text.split(":")[0]: b for b in having(svg, "bar")}
    assert list(bars) == [name for name, value in zip(ROWS, values) if value is not None]
    for name, value in zip(ROWS, values):
        if value is not None:
            start, end = float(bars[name].get("x")), float(bars[name].get("x")) + float(bars[name].get("width"))
            assert (start, end) == pytest.approx((place(0), place(value)), abs=0.05)
    ends = [float(w.get("x")) + float(w.get("width")) for w in having(svg, "whole")]
    assert ends == pytest.approx([place(64)] * 6, abs=0.05)
    assert [e.text for e in having(svg, "value")] == ["0", "3", "16", "40", "–", "64"]
    assert [e.text for e in having(svg, "name")] == ROWS  # from input to output
    heights = [float(e.get("y")) for e in having(svg, "name")]
    assert heights == sorted(heights)


def test_a_bar_below_zero_ends_at_zero() -> None:
    svg = root(draw_layers(["a", "b"], {"change": [-2.0, 4.0]}, title="t", x="x", alt=""))
    place = ruler(svg, "tick", False)
    first, second = having(svg, "bar")
    assert float(first.get("x")) == pytest.approx(place(-2), abs=0.05)
    assert float(first.get("x")) + float(first.get("width")) == pytest.approx(place(0), abs=0.05)
    assert float(second.get("x")) == pytest.approx(place(0), abs=0.05)


def test_shapes_of_several_series_are_where_the_ticks_say() -> None:
    series = {"px": [1.0, 2, 3, 4, 5, 6], "snip": [6.0, 5, 4, 3, 2, None], "random": [0.0, 1, 0, 1, 0, 1]}
    svg = root(draw_layers(ROWS, series, title="t", x="x", alt=""))
    place = ruler(svg, "tick", False)
    for i, values in enumerate(series.values()):
        found = placed(svg, i)
        assert [x for x, _ in found] == pytest.approx([place(v) for v in values if v is not None], abs=0.05)
    labels = [float(t.get("y")) - 4 for t in having(svg, "name")]
    first, last = ([y for _, y in placed(svg, i)] for i in (0, 2))
    assert [(a + b) / 2 for a, b in zip(first, last)] == pytest.approx(labels, abs=0.05)  # around its layer's name
    assert all(b < a for b, a in zip(last, first[1:]))  # and no row reaches into the next


@pytest.mark.parametrize("count", [2, 4, 12])
def test_equal_values_do_not_hide_each_other(count: int) -> None:
    """All methods keep every unit of a layer: each of them is to be seen."""
    svg = root(draw_layers(ROWS, {f"method {i}": [1.0] * 6 for i in range(count)}, title="t", x="x", alt="", total=1.0))
    heights = sorted(y for colour in range(count) for _, y in placed(svg, colour))
    assert len(heights) >= 12 and min(b - a for a, b in pairwise(heights)) > 2


def test_long_names_of_many_layers_are_cut_in_front_and_whole_in_a_title() -> None:
    names = [f"a_prefix.{LONG.replace('11', str(i))}" for i in range(160)]
    svg = root(draw_layers(names, {"px": [i / 160 for i in range(160)]}, title="t", x="x", alt="", total=1.0))
    labels = having(svg, "name")
    assert len(labels) == 160 and size(svg)[0] < 400
    for name, label in zip(names, labels):
        assert label.text.startswith("…") and name.endswith(label.text[1:]) and f".{name.split('.')[4]}." in label.text
        assert label.find(f"{SVG}title").text == name


@pytest.mark.parametrize("text", ["1", "12,345 of 270,896", "W" * 50])
@pytest.mark.parametrize("n", [1, 10, 20, 24, 25, 30, 60, 200])
def test_names_and_numbers_leave_room_for_the_bars(n: int, text: str) -> None:
    one = root(draw_layers(["n" * n], {"px": [1.0]}, title="t", x="x", alt="", total=1.0, texts={"px": [text]}))
    assert float(having(one, "whole")[0].get("width")) >= 90
    two = root(draw_boxes(["n" * n], [FIVE], name="px", title="t", x="x", alt=""))
    least, most = (FIVE[0], FIVE[-1])
    place = ruler(two, "tick", True)
    assert place(most) - place(least) >= 90


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
