"""Cells of a sweep: a norm makes a method of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_px.training.sweep import Cell, Sweep
from hf_px.training.sweep.cells import check_method


def test_a_norm_makes_a_method_of_its_own(tmp_path: Path) -> None:
    cells = [Cell("px", 0.9, 0), Cell("px:batch", 0.9, 0), Cell("px:running", 0.9, 0), Cell("px-path", 0.9, 0)]
    assert [cell.name for cell in cells] == ["px-0.9-s0", "px-batch-0.9-s0", "px-running-0.9-s0", "px-path-0.9-s0"]
    assert cells[2].flags[:4] == ["--scorer", "px", "--norm", "running"] and "--norm" not in cells[0].flags
    sweep = Sweep(tmp_path)
    for cell, norm in zip(cells, ("batch", "batch", "running", "batch")):
        recorded = {"scorer": cell.flags[1], "norm": norm, "sparsity": 0.9, "seed": 0}  # as a run writes them
        sweep.path(cell).mkdir(parents=True)
        (sweep.path(cell) / "results.json").write_text(json.dumps({"settings": recorded}))
    assert set(sweep.found()) == set(cells)


def test_a_norm_that_a_method_has_not() -> None:
    for method, printed in {
        "px:runing": "norm runing must be one of batch",
        "snip:batch": "snip has no such option",
        "py:batch": "unknown",
    }.items():
        with pytest.raises(ValueError, match=f"`methods` {method}: .*{printed}"):
            check_method(method)
