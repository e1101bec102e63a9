"""Heat maps: the number in each cell, and whether it fits."""

from __future__ import annotations

import math

import pytest
from support.svg import LONG, having, root

from hf_px.figures import draw_heatmap
from hf_px.figures.heat_map import _LEVELS
from hf_px.figures.svg_text import TEXT_SIZE, text_width


def test_a_heatmap_says_its_numbers_in_their_cells() -> None:
    values = [[1.0, 0.25, None], [0.254, 1.0, 0.0], [math.nan, 0.999, 1.0]]
    svg = root(draw_heatmap(["a", "b", "c"], values, title="t", alt=""))
    cells, texts = having(svg, "cell"), having(svg, "in")
    assert [t.text for t in texts] == ["1.00", "0.25", "–", "0.25", "1.00", "0.00", "–", "1.00", "1.00"]
    for cell, text, value in zip(cells, texts, [v for row in values for v in row]):
        x, y, side = (float(cell.get(k)) for k in ("x", "y", "width"))
        assert float(text.get("x")) == pytest.approx(x + side / 2) and y < float(text.get("y")) < y + side
        assert text_width(text.text) <= side
        known = value is not None and not math.isnan(value)
        level = f"q{round(value * _LEVELS)}" if known else "none"
        assert level in cell.get("class").split() and level in text.get("class").split()
    assert len({c.get("x") for c in cells}) == len({c.get("y") for c in cells}) == 3


@pytest.mark.parametrize("n", [1, 2, 5, 12, 13, 40])
def test_numbers_fit_their_cells_or_are_not_there(n: int) -> None:
    svg = root(draw_heatmap([f"{LONG[:36]}{i}" for i in range(n)], [[1.0] * n] * n, title="t", alt=""))
    texts, side = having(svg, "in"), float(having(svg, "cell")[0].get("width"))
    assert len(texts) == (n * n if n <= 12 else 0)
    assert not texts or text_width("0.00", 10 if "small" in texts[0].get("class") else TEXT_SIZE) <= side
