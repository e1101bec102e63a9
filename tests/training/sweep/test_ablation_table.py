"""Tables and figures of ablations: their form, from made-up numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hf_px.training.sweep import PER_CLASS, ROUNDS, as_figure, as_table


def made_up(key: str = "rounds", seeds: int = 3) -> list[dict[str, Any]]:
    """Numbers, not runs."""
    draw = torch.Generator().manual_seed(0)
    return [
        {
            "method": method, key: value, "seed": seed, "dense_accuracy": 0.9, "outcome": "finished",
            "ticket_accuracy": float(torch.rand((), generator=draw)), "pruning_seconds": 0.5 * value,
            "overlap": 1 / (1 + value),
        }
        for method in ("snip", "px")
        for value in (1, 10)
        for seed in range(seeds)
        if not (method == "snip" and key == "rounds" and value > 1)
    ]  # fmt: skip


def test_table_of_rounds() -> None:
    rows = made_up()
    rows[-1] |= {"ticket_accuracy": "", "pruning_seconds": "", "overlap": "", "outcome": "collapsed"}
    text = as_table(rows, "net on data", ROUNDS, "cuda, 2 processes")
    found = _rows(text)
    assert found["dense: 90.00 ± 0.00"] == ["T = 1", "s", "T = 10", "s"]
    assert found["snip"][2:] == ["–", "–"] and found["snip"][1] == found["px"][1] == "0.50"
    assert found["px"][2].endswith("(n=2, 1 collapsed)") and found["px"][3] == "5.00"
    assert "the mean over seeds (cuda, 2 processes)" in text and "95th percentile" in text
    assert "| px | 0.500 | 0.091 |" in text  # the overlap


def test_table_of_data_has_no_seconds() -> None:
    text = as_table(made_up("per_class"), "net on data", PER_CLASS)
    assert _rows(text)["dense: 90.00 ± 0.00"] == ["D = 1", "D = 10"] and "seconds" not in text


@pytest.mark.parametrize(("axis", "label"), [(ROUNDS, "pruning rounds T"), (PER_CLASS, "examples per class |D|")])
def test_figure(axis: Any, label: str) -> None:
    rows = made_up(axis.key)
    svg = as_figure(rows, "net on data", axis)
    assert svg == as_figure(rows, "net on data", axis)
    for word in ("px", "snip", "dense", "1", "10", label):
        assert f">{word}<" in svg
    assert ("seconds of pruning" in svg) is (axis is ROUNDS)


def test_a_collapse_is_drawn_as_a_cross() -> None:
    rows = made_up()
    assert ">collapsed<" not in as_figure(rows, "net on data", ROUNDS)
    rows = [row | ({"ticket_accuracy": "", "pruning_seconds": "", "outcome": "collapsed"} if row["rounds"] > 1 else {})
            for row in rows]  # fmt: skip
    assert ">collapsed<" in as_figure(rows, "net on data", ROUNDS)
    assert _rows(as_table(rows, "net on data", ROUNDS))["px"][2:] == ["collapsed", ""]


def _rows(text: str) -> dict[str, list[str]]:
    """Of the first table in a Markdown text."""
    lines = text.split("\nOverlap")[0].splitlines()
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {first: rest for first, *rest in found}
