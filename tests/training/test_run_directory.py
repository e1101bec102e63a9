"""What a run prints at its end."""

from __future__ import annotations

import json
from pathlib import Path

from support.places import REPO

from hf_px.training.run_directory import results_table

RESULTS = json.loads((REPO / "model_cards/examples/resnet20-digits-px-path-98/results.json").read_text())


def test_the_sizes_are_of_all_that_lies_on_disk() -> None:
    sizes = {"ticket.safetensors": 50_000, "model.safetensors": 1_100_000, "dense": 1_090_000}
    printed = results_table(RESULTS | {"bytes": sizes}, Path("out/run"), None)
    assert "wrote out/run: the ticket" in printed
    assert "on disk: ticket.safetensors 50,000 bytes, downloaded with hf_px, and model.safetensors 1,100,000" in printed
    assert "together 1,150,000" in printed and "bytes to download" in printed


def test_a_run_that_was_finished_before_writes_nothing_and_says_so() -> None:
    printed = results_table(RESULTS, Path("out/run"), None, before=True)
    assert "wrote" not in printed and "out/run holds this run, finished before" in printed
    assert "--overwrite" in printed
