"""What holds for every figure: equal bytes, text alternatives, any text stays inside, colours of both themes."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.svg import FIVE, HOSTILE, LONG, SVG, draw_lines, outside, root

from hf_px.figures import Panel, draw_boxes, draw_heatmap, draw_layers, draw_panels
from hf_px.figures.frame import DARK, LIGHT, THEME, series_style
from hf_px.figures.heat_map import _LEVELS, _RAMPS, level_colour


@lru_cache(maxsize=20)
def every_kind(name: str = "px", layer: str = "conv.weight", title: str = "A figure") -> dict[str, str]:
    """One figure of each kind, with these texts wherever text is taken."""
    many = {name: [(i, 1000 / i) for i in range(1, 200)], f"{name} 2": [(i, 500 / i) for i in range(1, 200)]}
    texts = dict(title=title, alt=title)
    two, second = [layer, f"{layer}2"], f"{name} 2"
    some = {name: [(0.64, 0.5, 0.1), (0.1, 0.25, 0.2)], second: [(0.64, 0.3, 0.1)]}
    ticks, crosses = {0.64: name, 0.1: "90 %"}, {second: [0.1]}
    panels = [Panel(some, name, log_x=True, ticks=ticks, reverse_x=True, crosses=crosses, dotted=[second])] * 2
    return {
        "lines": draw_lines(many, x=name, y=name, log_x=True, log_y=True, title=title),
        "few": draw_lines({name: [(1, 0.5), (2, 0.25), (10, 0.75)]}, x=name, y=name, title=title),
        "bars": draw_layers(two, {name: [0.5, None]}, x=name, total=1.0, texts={name: [name, ""]}, **texts),
        "shapes": draw_layers(two, {name: [3, 0], second: [1, None]}, x=name, total=4, **texts),
        "boxes": draw_boxes(two, [FIVE, None], name=name, x=name, threshold=1e-4, **texts),
        "panels": draw_panels(panels, y=name, levels={name: (0.5, 0.1)}, **texts),
        "heatmap": draw_heatmap([name, f"{name} 2"], [[1, 0.25], [None, 1]], **texts),
        "many": draw_heatmap([f"{name} {i}" for i in range(14)], [[0.5] * 14] * 14, **texts),
    }


KINDS = sorted(every_kind())


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
    assert contrast((LIGHT, DARK)[theme][0], THEME["total"][theme]) >= 3  # where a bar ends
    svg = draw_heatmap(["a"], [[1.0]], title="t", alt="")
    light, dark = svg.split("rect.none", 2)[1:]
    for level in range(_LEVELS + 1):
        cell = "#{:02x}{:02x}{:02x}".format(*level_colour(level, theme))
        assert f"rect.q{level}{{fill:rgb({','.join(map(str, level_colour(level, theme)))})}}" in (light, dark)[theme]
        ink = re.search(rf"text\.q{level}{{fill:(#\w+)}}", (light, dark)[theme])[1]
        assert contrast(cell, ink) >= 4.5
    assert contrast("#{:02x}{:02x}{:02x}".format(*_RAMPS[theme][1]), ground) >= 3


def test_series_differ_by_shape_and_by_colour() -> None:
    keys = [series_style(i) for i in range(24)]
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


def test_of_two_runs_with_long_names_both_ends_stay() -> None:
    name = "a-user-with-a-long-name/resnet20-cifar10-at-98.20-percent-px-pruned-before-training-seed-3"
    svg = draw_lines({name: [(1, 1)], "b": [(1, 2)]}, x="x", y="y")
    (shown,) = [e.text for e in root(svg).iter(f"{SVG}text") if "…" in (e.text or "")]
    assert shown.startswith("a-user") and shown.endswith("seed-3") and f"<title>{name}</title>" in svg
