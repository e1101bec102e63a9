"""A report on a ticket from the Hub beside the model that it was pruned from."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import timm
from support.makers import dense, ticket

from hf_px.cli import main


@pytest.fixture(autouse=True)
def alice(hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    monkeypatch.chdir(tmp_path)


def test_a_ticket_and_its_base_side_by_side(hub) -> None:
    ticket("test_resnet").push_to_hub("alice/ticket")
    timm.models.push_to_hf_hub(dense("test_resnet"), "alice/base", safe_serialization=True)
    quick = ["--data", "digits", "--per-class", "1", "--images", "2", "--draws", "0", "--top", "3", "--skip", "latency"]
    assert main(["report", "alice/ticket", "alice/base", *quick, "--quiet"]) == 0
    with open("report/tables/spectrum.csv", newline="", encoding="utf-8") as file:
        found = {row["network"]: row for row in csv.DictReader(file)}
    # the two have the same layers and images, so that one is measured against the other
    assert set(found) == {"ticket", "base, dense"}
    assert float(found["ticket"]["distance, own weights"]) > 0
    assert float(found["ticket"]["trace, ± error"]) > 0  # three eigenvalues of twenty: the trace is an estimate


def test_what_is_not_there_is_said(hub, capsys) -> None:
    assert main(["report", "alice/nothing", "--quiet"]) == 2
    assert "alice/nothing" in capsys.readouterr().err
    assert not Path("report/index.html").exists()
