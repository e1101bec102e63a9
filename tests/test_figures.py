"""Pictures: equal numbers give equal bytes, each number is where it belongs, no stranger's word leaves its place."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable
from functools import lru_cache
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hf_px.figures import Table, boxes, heatmap, layers, lines
from hf_px.figures.axis import Axis, around
from hf_px.figures.frame import DARK, LIGHT, THEME, key
from hf_px.figures.heat_map import _LEVELS, _RAMPS, ramp
from hf_px.figures.text import SIZE, back, front, middle, width, wrap

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert("x")</script>]]>&\'"\x1b[2J\x00\u202e\ud800 --> <![CDATA['
LONG = "base_model.encoder.layer.11.attention.output.dense.weight"
ROWS = [f"layers.{i}.weight" for i in range(6)]
FIVE = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


@lru_cache(maxsize=20)
def every_kind(name: str = "px", layer: str = "conv.weight", title: str = "A picture") -> dict[str, str]:
    """One of each, with these words in all places that take words."""
    many = {name: [(i, 1000 / i) for i in range(1, 200)], f"{name} 2": [(i, 500 / i) for i in range(1, 200)]}
    told = dict(title=title, alt=title)
    return {
        "lines": lines(many, x=name, y=name, log_x=True, log_y=True, marks={name: 10.0, f"{name} 3": 3.0}, **told),
        "few": lines({name: [(1, 0.5), (2, 0.25), (10, 0.75)]}, x=name, y=name, **told),
        "bars": layers([layer, f"{layer}2"], {name: [0.5, None]}, x=name, whole=1.0, texts={name: [name, ""]}, **told),
        "shapes": layers([layer, f"{layer}2"], {name: [3, 0], f"{name} 2": [1, None]}, x=name, whole=[3, 4], **told),
        "boxes": boxes([layer], {name: [FIVE], f"{name} 2": [None]}, x=name, marks={name: 1e-4, "at": 0.5}, **told),
        "heatmap": heatmap([name, f"{name} 2"], [[1, 0.25], [None, 1]], **told),
        "many": heatmap([f"{name} {i}" for i in range(14)], [[0.5] * 14] * 14, **told),
    }


KINDS = sorted(every_kind())


def root(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def size(svg: ElementTree.Element) -> tuple[float, float]:
    left, top, wide, high = map(float, svg.get("viewBox").split())
    assert left == top == 0
    return wide, high


def having(svg: ElementTree.Element, *classes: str) -> list[ElementTree.Element]:
    return [e for e in svg.iter() if set(classes) <= set((e.get("class") or "").split())]


def placed(svg: ElementTree.Element, colour: int) -> list[tuple[float, float]]:
    """Where markers of a series are; those of the legend lie in groups."""
    found = [e for e in svg if e.tag == f"{SVG}path" and e.get("class") == f"m f{colour}"]
    return [tuple(map(float, re.findall(r"-?[\d.]+", e.get("transform")))) for e in found]


def near(found: list[tuple[float, float]], wanted: list[tuple[float, float]]) -> bool:
    """To a twentieth of a pixel: coordinates have two decimals."""
    return len(found) == len(wanted) and all(math.dist(a, b) < 0.08 for a, b in zip(found, wanted))


def number(label: str) -> float:
    """What a reader takes a label for."""
    label = label.replace("−", "-").replace(",", "")
    if power := re.fullmatch(r"10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", label):
        return 10.0 ** int(power[1].translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")))
    return float(label)


def ruler(svg: ElementTree.Element, kind: str, log: bool) -> Callable[[float], float]:
    """value -> place, by the first and last tick as a reader reads them: their labels and where they stand."""
    if kind == "rung":
        ticks = [(number(e.text), float(e.get("y")) - 4) for e in having(svg, "rung")]
    else:
        ticks = [(number(e.text), float(e.get("x"))) for e in having(svg, "tick")]
    law = math.log10 if log else float
    (a, at_a), (b, at_b) = ticks[0], ticks[-1]
    return lambda value: at_a + (law(value) - law(a)) / (law(b) - law(a)) * (at_b - at_a)


def outside(svg: str) -> list[str]:
    """Texts of which the anchor or the estimated extent leaves the picture."""
    tree, found = root(svg), []
    wide, high = size(tree)

    def visit(parent: ElementTree.Element, dx: float, dy: float) -> None:
        for e in parent:
            moved = re.match(r"translate\((\S+) (\S+)\)", e.get("transform") or "translate(0 0)")
            x, y = dx + float(moved[1]), dy + float(moved[2])
            if e.tag == f"{SVG}text":
                bold = "title" in (e.get("class") or "")
                long = width(e.text or "", 13 if bold else SIZE, bold)
                start = x + float(e.get("x")) - {"middle": long / 2, "end": long}.get(e.get("text-anchor"), 0)
                base = y + float(e.get("y"))
                if start < 0 or start + long > wide or base - SIZE < 0 or base + 3 > high:
                    found.append(f"{e.text} at {start:.0f}..{start + long:.0f}, {base:.0f} in {wide} x {high}")
            visit(e, x, y)

    visit(tree, 0.0, 0.0)
    return found


# all of them


@pytest.mark.parametrize("kind", KINDS)
def test_equal_numbers_give_equal_bytes(kind: str) -> None:
    assert every_kind()[kind] == every_kind.__wrapped__()[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_has_a_name_and_a_text_alternative_and_nothing_that_collides(kind: str) -> None:
    svg = every_kind(title="Density by layer")[kind]
    tree = root(svg)
    assert tree.get("role") == "img"
    assert [child.tag for child in tree][:2] == [f"{SVG}title", f"{SVG}desc"]
    assert tree[0].text == tree[1].text == "Density by layer"
    assert not [e for e in tree.iter() if e.get("id") or any("href" in name for name in e.attrib)]
    sheet = tree.find(f"{SVG}style").text
    for selector in re.findall(r"([^{}]+)\{", re.sub(r"@media[^{]*\{", "", sheet)):
        assert all(part.strip().startswith(".hfpx") for part in selector.split(",")), selector


@pytest.mark.parametrize("kind", ["lines", "bars", "boxes", "heatmap"])
def test_without_words_the_text_alternative_says_what_is_drawn(kind: str) -> None:
    drawn = {
        "lines": lines({"px": [(1, 2)]}, title="t", x="rank", y="value"),
        "bars": layers(["a"], {"px": [1]}, title="t", x="units"),
        "boxes": boxes(["a"], {"px": [FIVE]}, title="t", x="score"),
        "heatmap": heatmap(["px"], [[1.0]], title="t"),
    }[kind]
    assert "px" in root(drawn)[1].text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", [HOSTILE, LONG * 3, "W" * 300, "名前" * 40, "", "﷽" * 9, "a b " * 60])
def test_any_words_stay_inside_and_are_only_words(kind: str, words: str) -> None:
    svg = every_kind(words, words, words)[kind]
    assert outside(svg) == []
    tags = {e.tag.removeprefix(SVG) for e in root(svg).iter()}
    assert tags <= {"svg", "title", "desc", "style", "rect", "g", "path", "line", "text"}
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e\ud800]", svg)
    svg.encode("utf-8")


@settings(max_examples=60, deadline=None)
@given(words=st.text(max_size=80), kind=st.sampled_from(KINDS))
def test_any_text_gives_a_picture(words: str, kind: str) -> None:
    assert outside(every_kind(words, words, words)[kind]) == []


numbers = st.one_of(st.none(), st.floats(), st.sampled_from([0.0, -0.0, 5e-324, 1e308, -1e308, 1e16, 1e16 + 2]))


@settings(max_examples=60, deadline=None)
@given(points=st.lists(st.tuples(st.floats(), st.floats()), max_size=6), log_x=st.booleans(), log_y=st.booleans())
def test_any_numbers_give_lines_inside(points: list[tuple[float, float]], log_x: bool, log_y: bool) -> None:
    svg = lines({"a": points, "b": []}, title="t", x="x", y="y", log_x=log_x, log_y=log_y)
    assert outside(svg) == [] and "nan" not in svg.lower().split("</style>")[1].replace("a: nan", "")
    wide, high = size(root(svg))
    assert all(0 <= x <= wide and 0 <= y <= high for x, y in placed(root(svg), 0))


@settings(max_examples=60, deadline=None)
@given(values=st.lists(numbers, min_size=1, max_size=6), several=st.booleans(), whole=st.none() | st.floats(0.1, 1e6))
def test_any_numbers_give_layers_inside(values: list[float | None], several: bool, whole: float | None) -> None:
    series = {"a": values, **({"b": values[::-1]} if several else {})}
    svg = layers([f"l{i}" for i in range(len(values))], series, title="t", x="x", whole=whole)
    assert outside(svg) == []
    wide, high = size(root(svg))
    assert all(0 <= x <= wide and 0 <= y <= high for x, y in placed(root(svg), 0))
    for bar in having(root(svg), "bar"):
        assert float(bar.get("x")) >= 0 and float(bar.get("x")) + float(bar.get("width")) <= wide


@settings(max_examples=60, deadline=None)
@given(fives=st.lists(st.lists(st.floats(allow_nan=False), min_size=5, max_size=5), max_size=4), log=st.booleans())
def test_any_quantiles_give_boxes_inside(fives: list[list[float]], log: bool) -> None:
    values = [tuple(sorted(five)) for five in fives]
    svg = boxes([f"l{i}" for i in range(len(values))], {"a": values}, title="t", x="x", log_x=log, marks={"at": 1.0})
    assert outside(svg) == []
    wide = size(root(svg))[0]
    for box in having(root(svg), "box"):
        assert float(box.get("x")) >= 0 and float(box.get("x")) + float(box.get("width")) <= wide


# where numbers are


@pytest.mark.parametrize("log_x", [False, True])
@pytest.mark.parametrize("log_y", [False, True])
def test_each_point_of_a_line_is_where_the_ticks_say(log_x: bool, log_y: bool) -> None:
    points = [(x, 3 * x**1.5) for x in (1, 3, 7, 20, 60, 200, 450, 700, 999)]
    svg = root(lines({"px": points}, title="t", x="x", y="y", log_x=log_x, log_y=log_y))
    across, up = ruler(svg, "tick", log_x), ruler(svg, "rung", log_y)
    wanted = [(across(x), up(y)) for x, y in points]
    assert near(placed(svg, 0), wanted)
    (path,) = [e.get("d") for e in having(svg, "line", "s0") if e.tag == f"{SVG}path"]
    drawn = [tuple(map(float, p.split())) for p in re.split("[ML]", path)[1:]]
    assert near(drawn, wanted)


def test_a_spectrum_of_a_thousand_points_keeps_all_and_marks_some() -> None:
    series = {f"s{i}": [(k, 1e4 * k ** -(1 + i / 4)) for k in range(1, 1001)] for i in range(3)}
    svg = root(lines(series, title="t", x="rank", y="value", log_x=True, log_y=True))
    across, up = ruler(svg, "tick", True), ruler(svg, "rung", True)
    for i, points in enumerate(series.values()):
        (path,) = [e for e in svg if e.get("class") == f"line s{i}"]
        drawn = [tuple(map(float, p.split())) for p in re.split("[ML]", path.get("d"))[1:]]
        assert near(drawn, [(across(x), up(y)) for x, y in points])
        assert 4 <= len(placed(svg, i)) <= 9 and set(placed(svg, i)) <= set(drawn)


def test_a_line_breaks_where_a_value_has_no_logarithm() -> None:
    points = [(1, 10), (2, 0), (3, 10), (4, 100), (5, math.nan), (6, 1), (7, -3), (8, math.inf), (9, 2)]
    (path,) = [e.get("d") for e in having(root(lines({"a": points}, title="t", x="x", y="y", log_y=True)), "line")]
    assert [len(part.split("L")) for part in path.split("M")[1:]] == [1, 2, 1, 1]


def test_a_few_values_that_were_tried_are_the_ticks() -> None:
    svg = root(lines({"px": [(t, 0.9) for t in (1, 2, 10, 100, 200)]}, title="t", x="T", y="accuracy", log_x=True))
    assert [e.text for e in having(svg, "tick")] == ["1", "2", "10", "100", "200"]


def test_nothing_to_draw_is_said() -> None:
    for series in ({}, {"a": []}, {"a": [(1.0, -1.0)]}):
        assert "no numbers to draw" in lines(series, title="t", x="x", y="y", log_y=True)


def test_bars_end_where_the_ticks_say_and_lie_on_their_whole() -> None:
    values, wholes = [0.0, 3.0, 16.0, 40.0, None, 64.0], [16, 16, 16, 64, 64, 64]
    svg = root(layers(ROWS, {"live": values}, title="t", x="units", whole=wholes))
    place = ruler(svg, "tick", False)
    bars = {b[0].text.split(":")[0]: b for b in having(svg, "bar")}
    assert list(bars) == [name for name, value in zip(ROWS, values) if value is not None]
    for name, value in zip(ROWS, values):
        if value is not None:
            start, end = float(bars[name].get("x")), float(bars[name].get("x")) + float(bars[name].get("width"))
            assert (start, end) == pytest.approx((place(0), place(value)), abs=0.05)
    ends = [float(w.get("x")) + float(w.get("width")) for w in having(svg, "whole")]
    assert ends == pytest.approx([place(w) for w in wholes], abs=0.05)
    assert [e.text for e in having(svg, "value")] == ["0", "3", "16", "40", "–", "64"]
    assert [e.text for e in having(svg, "name")] == ROWS  # from input to output
    heights = [float(e.get("y")) for e in having(svg, "name")]
    assert heights == sorted(heights)


def test_a_bar_below_zero_ends_at_zero() -> None:
    svg = root(layers(["a", "b"], {"change": [-2.0, 4.0]}, title="t", x="x"))
    place = ruler(svg, "tick", False)
    first, second = having(svg, "bar")
    assert float(first.get("x")) == pytest.approx(place(-2), abs=0.05)
    assert float(first.get("x")) + float(first.get("width")) == pytest.approx(place(0), abs=0.05)
    assert float(second.get("x")) == pytest.approx(place(0), abs=0.05)


def test_shapes_of_several_series_are_where_the_ticks_say() -> None:
    series = {"px": [1.0, 2, 3, 4, 5, 6], "snip": [6.0, 5, 4, 3, 2, None], "random": [0.0, 1, 0, 1, 0, 1]}
    svg = root(layers(ROWS, series, title="t", x="x"))
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
    svg = root(layers(ROWS, {f"method {i}": [1.0] * 6 for i in range(count)}, title="t", x="x", whole=1.0))
    heights = sorted(y for colour in range(count) for _, y in placed(svg, colour))
    assert len(heights) >= 12 and min(b - a for a, b in pairwise(heights)) > 2


def test_boxes_lie_where_the_ticks_say_and_thresholds_too() -> None:
    fives = [tuple(10.0 ** (q - i) for q in (-6, -4, -3, -2, 0)) for i in range(6)]
    svg = root(boxes(ROWS, {"px": fives}, title="t", x="score", marks={"threshold": 1e-5}))
    place = ruler(svg, "tick", True)
    for five, box, at in zip(fives, [b for b in having(svg, "box") if b in list(svg)], placed(svg, 0)):
        start, wide = float(box.get("x")), float(box.get("width"))
        assert (start, start + wide, at[0]) == pytest.approx((place(five[1]), place(five[3]), place(five[2])), abs=0.05)
    whiskers = [e.get("d") for e in svg if e.get("class") == "line s0"]
    ends = [tuple(float(x) for x in re.fullmatch(r"M(\S+) \S+H(\S+)", d).groups()) for d in whiskers]
    assert near(ends, [(place(f[0]), place(f[4])) for f in fives])
    (mark,) = [e for e in svg if e.tag == f"{SVG}line" and e.get("class") == "line s5"]
    assert float(mark.get("x1")) == pytest.approx(place(1e-5), abs=0.05)


def test_a_quantile_of_zero_goes_off_the_logarithmic_axis() -> None:
    svg = root(boxes(["a", "b", "c"], {"px": [(0, 0, 1e-3, 1e-2, 1), FIVE, (0,) * 5]}, title="t", x="score"))
    assert len(having(svg, "box")) == 2  # a layer of zeros alone has no box
    arrows = [e for e in svg if e.get("class") == "line s0" and "l-4 3" in e.get("d")]
    assert len(arrows) == 1


def test_a_threshold_stands_with_the_series_of_its_name() -> None:
    svg = root(boxes(["a"], {"px": [FIVE], "snip": [FIVE]}, title="t", x="s", marks={"px": 1e-3, "snip": 1e-5}))
    assert {"px (line: 0.001)", "snip (line: 1e-05)"} <= {e.text for e in svg.iter(f"{SVG}text")}
    assert {e.get("class") for e in svg if e.get("class") and e.tag == f"{SVG}line"} == {"grid", "line s0", "line s1"}


def test_a_heatmap_says_its_numbers_in_their_cells() -> None:
    values = [[1.0, 0.25, None], [0.254, 1.0, 0.0], [math.nan, 0.999, 1.0]]
    svg = root(heatmap(["a", "b", "c"], values, title="t"))
    cells, texts = having(svg, "cell"), having(svg, "in")
    assert [t.text for t in texts] == ["1.00", "0.25", "–", "0.25", "1.00", "0.00", "–", "1.00", "1.00"]
    for cell, text, value in zip(cells, texts, [v for row in values for v in row]):
        x, y, side = (float(cell.get(k)) for k in ("x", "y", "width"))
        assert float(text.get("x")) == pytest.approx(x + side / 2) and y < float(text.get("y")) < y + side
        assert width(text.text) <= side
        known = value is not None and not math.isnan(value)
        level = f"q{round(value * _LEVELS)}" if known else "none"
        assert level in cell.get("class").split() and level in text.get("class").split()
    assert len({c.get("x") for c in cells}) == len({c.get("y") for c in cells}) == 3


@pytest.mark.parametrize("n", [1, 2, 5, 12, 13, 40])
def test_numbers_fit_their_cells_or_are_not_there(n: int) -> None:
    svg = root(heatmap([f"{LONG[:36]}{i}" for i in range(n)], [[1.0] * n] * n, title="t"))
    texts, side = having(svg, "in"), float(having(svg, "cell")[0].get("width"))
    assert len(texts) == (n * n if n <= 12 else 0)
    assert not texts or width("0.00", 10 if "small" in texts[0].get("class") else SIZE) <= side


@pytest.mark.parametrize(
    ("draw", "complaint"),
    [
        (lambda: layers(["a", "b"], {"px": [1]}, title="t", x="x"), "px: 1 values for 2 layers"),
        (lambda: layers(["a"], {"px": [1]}, title="t", x="x", whole=[1, 2]), "whole: 2 values for 1 layers"),
        (lambda: layers(["a"], {"px": [1]}, title="t", x="x", texts={"px": []}), "px: 0 values for 1 layers"),
        (lambda: boxes(["a"], {"px": []}, title="t", x="x"), "px: 0 boxes for 1 layers"),
        (lambda: boxes(["a"], {"px": [FIVE[::-1]]}, title="t", x="x"), "px, a: .* are no quantiles"),
        (lambda: heatmap(["a"], [[1.5]], title="t"), r"a: 1.5 is not in \[0, 1\]"),
        (lambda: heatmap(["a", "b"], [[1.0]], title="t"), "2 names, but 1 rows"),
    ],
)
def test_what_cannot_be_drawn_is_named(draw: Callable[[], str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        draw()


def test_long_names_of_many_layers_are_cut_in_front_and_whole_in_a_title() -> None:
    names = [f"a_prefix.{LONG.replace('11', str(i))}" for i in range(160)]
    svg = root(layers(names, {"px": [i / 160 for i in range(160)]}, title="t", x="x", whole=1.0))
    labels = having(svg, "name")
    assert len(labels) == 160 and size(svg)[0] < 400
    for name, label in zip(names, labels):
        assert label.text.startswith("…") and name.endswith(label.text[1:]) and f".{name.split('.')[4]}." in label.text
        assert label.find(f"{SVG}title").text == name


@pytest.mark.parametrize("said", ["1", "12,345 of 270,896", "W" * 50])
@pytest.mark.parametrize("n", [1, 10, 20, 24, 25, 30, 60, 200])
def test_names_and_numbers_leave_room_for_the_bars(n: int, said: str) -> None:
    one = root(layers(["n" * n], {"px": [1.0]}, title="t", x="x", whole=1.0, texts={"px": [said]}))
    assert float(having(one, "whole")[0].get("width")) >= 90
    two = root(boxes(["n" * n], {"px": [FIVE]}, title="t", x="x"))
    least, most = (FIVE[0], FIVE[-1])
    place = ruler(two, "tick", True)
    assert place(most) - place(least) >= 90


# colours


def contrast(a: str, b: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear))

    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_contrast_in_both_themes(theme: int) -> None:
    ground = THEME["ground"][theme]
    assert all(contrast(colour, ground) >= 3 for colour in (LIGHT, DARK)[theme])
    assert all(contrast(THEME[text][theme], ground) >= 4.5 for text in ("ink", "muted"))
    assert contrast(THEME["edge"][theme], ground) >= 3  # how long a whole is
    assert contrast((LIGHT, DARK)[theme][0], THEME["whole"][theme]) >= 3  # where a bar ends
    svg = heatmap(["a"], [[1.0]], title="t")
    light, dark = svg.split("rect.none", 2)[1:]
    for level in range(_LEVELS + 1):
        cell = "#{:02x}{:02x}{:02x}".format(*ramp(level, theme))
        assert f"rect.q{level}{{fill:rgb({','.join(map(str, ramp(level, theme)))})}}" in (light, dark)[theme]
        ink = re.search(rf"text\.q{level}{{fill:(#\w+)}}", (light, dark)[theme])[1]
        assert contrast(cell, ink) >= 4.5
    assert contrast("#{:02x}{:02x}{:02x}".format(*_RAMPS[theme][1]), ground) >= 3


def test_series_differ_by_shape_and_by_colour() -> None:
    keys = [key(i) for i in range(24)]
    assert len(set(keys)) == 24
    assert len({k.shape for k in keys[:8]}) == 8 and len({k.dash for k in keys[:8]}) == 8
    assert len({k.colour for k in keys[:6]}) == 6


# Machado, Oliveira and Fernandes 2009, severity 1: what readers without red, green and blue cones see, in linear RGB
BLIND = {
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def lab(colour: str, blind: str) -> tuple[float, ...]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    rgb = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    r, g, b = (min(1, max(0, sum(w * c for w, c in zip(row, rgb)))) for row in BLIND[blind])
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    f = [c ** (1 / 3) if c > 0.008856 else 7.787 * c + 16 / 116 for c in (x, y, z)]
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


@pytest.mark.parametrize("blind", sorted(BLIND))
@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colour_blind_readers_tell_the_colours_apart(blind: str, colours: tuple[str, ...]) -> None:
    for a, b in combinations(colours, 2):
        assert math.dist(lab(a, blind), lab(b, blind)) > 14, (a, b)


# text and ticks


@given(st.text(max_size=60), st.floats(20, 400))
def test_text_is_cut_to_its_width(words: str, most: float) -> None:
    assert width(front(words, most)) <= max(most, width("…"))
    assert width(back(words, most)) <= max(most, width("…"))
    assert width(middle(words, most)) <= max(most, width("…"))
    assert all(width(line) <= most for line in wrap(words, most)) and len(wrap(words, most)) <= 3
    if width(words) <= most:
        assert front(words, most) == middle(words, most) == back(words, most) == words


@settings(deadline=None)
@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=5), st.booleans(), st.integers(3, 8))
def test_ticks_are_few_in_order_and_inside_and_say_what_they_are(values: list[float], log: bool, most: int) -> None:
    axis = around(values, log=log)
    ticks = axis.ticks(most)
    assert len(ticks) <= most
    assert [v for v, _ in ticks] == sorted(v for v, _ in ticks)
    room = (axis.high - axis.low) * 1e-6
    assert all(axis.low - room <= v <= axis.high + room for v, _ in ticks)
    assert all(number(label) == pytest.approx(v, rel=1e-9, abs=1e-300) for v, label in ticks)
    assert len({label for _, label in ticks}) == len(ticks)


def test_of_two_runs_with_long_names_both_ends_stay() -> None:
    name = "a-user-with-a-long-name/resnet20-cifar10-at-98.20-percent-px-pruned-before-training-seed-3"
    svg = lines({name: [(1, 1)], "b": [(1, 2)]}, title="t", x="x", y="y")
    (shown,) = [e.text for e in root(svg).iter(f"{SVG}text") if "…" in (e.text or "")]
    assert shown.startswith("a-user") and shown.endswith("seed-3") and f"<title>{name}</title>" in svg


def test_ticks_are_round_numbers() -> None:
    assert [t for _, t in Axis(0, 1).ticks(6)] == ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert [t for _, t in Axis(89.7, 93.4).ticks(6)] == ["90", "91", "92", "93"]
    assert [t for _, t in Axis(0, 2.5e6).ticks(6)] == ["0", "5e5", "1e6", "1.5e6", "2e6", "2.5e6"]
    assert [t for _, t in Axis(0.9, 1200, log=True).ticks(6)] == ["1", "10", "100", "1,000"]
    assert [t for _, t in Axis(1e-7, 1e4, log=True).ticks(6)] == ["10⁻⁶", "10⁻⁴", "10⁻²", "10⁰", "10²", "10⁴"]


# tables

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
        (lambda: Table(("a",), ((1.5,),), (",d",)), ValueError, "column 'a': 1.5 cannot be shown by ',d'"),
        (lambda: Table(("a",), (), ("", "")), ValueError, "2 formats for 1 columns"),
        (lambda: Table(("a", "a"), ()), ValueError, "have one name"),
        (lambda: Table(("a",), ((object(),),)), TypeError, "column 'a' holds a object"),
    ],
)
def test_a_table_that_is_none_is_an_error(make: Callable[[], Table], error: type, complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        make()
