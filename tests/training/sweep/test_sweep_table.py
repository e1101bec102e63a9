"""CSV, table and figure of a sweep: their form, from made-up numbers."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np

from hf_px.training.sweep import as_csv, as_figure, as_table


def made_up(seeds: int = 3) -> list[dict[str, Any]]:
    """Numbers, not runs: for the table's and the figure's form."""
    draw = np.random.default_rng(0)
    return [
        {"method": method, "sparsity": s, "seed": seed, "ticket_accuracy": draw.random(), "dense_accuracy": 0.9}
        for method in ("px", "snip")
        for s in (0.36, 0.982)
        for seed in range(seeds)
    ]  # fmt: skip


def test_table_form() -> None:
    rows = made_up()
    text = as_table(rows[:-1], "net on data")  # snip at 98.2 % lacks a seed
    assert "| dense: 90.00 ± 0.00 | 36 % | 98.2 % |" in text and "over 3 seeds" in text
    assert _line(text, "snip").endswith("(n=2) |")
    for column, s in ((1, 0.36), (2, 0.982)):
        means = {m: np.mean([r["ticket_accuracy"] for r in rows[:-1] if (r["method"], r["sparsity"]) == (m, s)])
                 for m in ("px", "snip")}  # fmt: skip
        for method, value in means.items():
            assert ("**" in _line(text, method).split("|")[column + 1]) == (value == max(means.values()))
    assert "±" not in as_table(made_up(1), "net on data")


def test_a_cell_without_a_dense_twin() -> None:
    rows = [row | {"dense_accuracy": ""} for row in made_up()]
    assert "| method | 36 % |" in as_table(rows, "net on data")
    assert ">dense<" not in as_figure(rows, "net on data")


def test_the_same_results_give_the_same_figure() -> None:
    svg = as_figure(made_up(), "net on data")
    assert svg == as_figure(made_up(), "net on data")
    for word in ("px", "snip", "dense", "36 %", "98.2 %"):
        assert f">{word}<" in svg


def test_csv_quotes_what_needs_it() -> None:
    row = dict.fromkeys(as_csv([]).strip().split(","), "a,b")
    assert next(csv.DictReader(as_csv([row]).splitlines())) == row


def _line(table: str, method: str) -> str:
    return next(line for line in table.splitlines() if line.startswith(f"| {method} |"))
