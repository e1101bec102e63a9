"""SVG figures as a reader sees them: where the markers are, and what the ticks say."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from xml.etree import ElementTree

from hf_px.figures import Panel, draw_panels
from hf_px.figures.svg_text import TEXT_SIZE, text_width

SVG = "{http://www.w3.org/2000/svg}"

HOSTILE = '<script>alert("x")</script>]]>&\'"\x1b[2J\x00\u202e\ud800 --> <![CDATA['

LONG = "base_model.encoder.layer.11.attention.output.dense.weight"

ROWS = [f"layers.{i}.weight" for i in range(6)]

FIVE = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


def draw_lines(series: dict, *, x: str, y: str, title: str = "t", log_x: bool = False, log_y: bool = False) -> str:
    """One panel of lines."""
    return draw_panels([Panel(series, x, log_x)], title=title, y=y, log_y=log_y, alt=title)


def root(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def size(svg: ElementTree.Element) -> tuple[float, float]:
    left, top, wide, high = map(float, svg.get("viewBox").split())
    assert left == top == 0
    return wide, high


def having(svg: ElementTree.Element, *classes: str) -> list[ElementTree.Element]:
    return [e for e in svg.iter() if set(classes) <= set((e.get("class") or "").split())]


def placed(svg: ElementTree.Element, colour: int) -> list[tuple[float, float]]:
    """Positions of the markers of a series, without those in the legend, which are in groups."""
    found = [e for e in svg if e.tag == f"{SVG}path" and e.get("class") == f"m f{colour}"]
    return [tuple(map(float, re.findall(r"-?[\d.]+", e.get("transform")))) for e in found]


def near(found: list[tuple[float, float]], wanted: list[tuple[float, float]]) -> bool:
    """To a twentieth of a pixel: coordinates have two decimals."""
    return len(found) == len(wanted) and all(math.dist(a, b) < 0.08 for a, b in zip(found, wanted))


def label_value(label: str) -> float:
    """The number that a tick label stands for."""
    label = label.replace("−", "-").replace(",", "")
    if power := re.fullmatch(r"10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", label):
        return 10.0 ** int(power[1].translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")))
    return float(label)


def ruler(svg: ElementTree.Element, kind: str, log: bool) -> Callable[[float], float]:
    """value -> place, by the first and last tick as a reader reads them: their labels and where they stand."""
    if kind == "rung":
        ticks = [(label_value(e.text), float(e.get("y")) - 4) for e in having(svg, "rung")]
    else:
        ticks = [(label_value(e.text), float(e.get("x"))) for e in having(svg, "tick")]
    law = math.log10 if log else float
    (a, at_a), (b, at_b) = ticks[0], ticks[-1]
    return lambda value: at_a + (law(value) - law(a)) / (law(b) - law(a)) * (at_b - at_a)


def outside(svg: str) -> list[str]:
    """Texts whose anchor or estimated extent is outside the figure."""
    tree, found = root(svg), []
    wide, high = size(tree)

    def visit(parent: ElementTree.Element, dx: float, dy: float) -> None:
        for e in parent:
            moved = re.match(r"translate\((\S+) (\S+)\)", e.get("transform") or "translate(0 0)")
            x, y = dx + float(moved[1]), dy + float(moved[2])
            if e.tag == f"{SVG}text":
                bold = "title" in (e.get("class") or "")
                long = text_width(e.text or "", 13 if bold else TEXT_SIZE, bold)
                start = x + float(e.get("x")) - {"middle": long / 2, "end": long}.get(e.get("text-anchor"), 0)
                base = y + float(e.get("y"))
                if start < 0 or start + long > wide or base - TEXT_SIZE < 0 or base + 3 > high:
                    found.append(f"{e.text} at {start:.0f}..{start + long:.0f}, {base:.0f} in {wide} x {high}")
            visit(e, x, y)

    visit(tree, 0.0, 0.0)
    return found
