"""The same choice gives the same mask from Python, from the command line and from the recipe: one set of defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
from support.launching import main as recipe
from support.launching import small_digits, small_pairs
from timm.models import save_for_hf

import hf_px
from hf_px.cli import main as command
from hf_px.core.head import segments
from hf_px.data import open_data
from hf_px.data.pruning_set import load_pruning_set
from hf_px.models.load import load
from hf_px.training.experiment import Experiment


class Stop(Exception):
    """The recipe has its mask."""


def masks(model: str, data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **choice: Any) -> dict[str, str]:
    """{interface: digest of the mask}"""
    task = "segmentation" if (data / "classes.txt").exists() else "classification"
    names = open_data(str(data), task=task).classes
    network = load(model, num_classes=len(names), seed=0).model
    batches = load_pruning_set(str(data), network, 2, 8 if segments(network) else 100, 0)
    found = {"Python": hf_px.prune(network, batches=batches, progress=False, **choice).digest()}

    flags = [word for name, value in choice.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    flags += ["--data", str(data), "--per-class", "2"]
    words = ["prune", model, *flags, "--num-classes", str(len(names)), "--output", str(tmp_path / "out"), "--quiet"]
    words += ["--no-repair"]  # which has defaults of its own
    assert command(words) == 0
    found["command line"] = json.loads((tmp_path / "out" / "prune.json").read_text())["digest"]

    def stop(experiment: Experiment, mask: hf_px.Mask) -> None:
        found["recipe"] = mask.digest()
        raise Stop

    monkeypatch.setattr(Experiment, "record_mask", stop)
    with pytest.raises(Stop):
        recipe(["--model", model, *flags, "--repair", "false", "--output-dir", str(tmp_path / "run")])
    return found


@pytest.mark.parametrize(
    "choice",
    [
        {"rounds": 3},  # all else by default: px-path, 98.2 %, the head kept dense
        {"scorer": "snip", "sparsity": 0.9},
        {"scorer": "px", "sparsity": 0.9, "rounds": 2, "norm": "running"},
        {"scorer": "magnitude", "scope": "erk", "sparsity": 0.8},
    ],
    ids=lambda choice: choice.get("scorer", "default"),
)
def test_a_classifier(choice: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    data = small_digits(tmp_path / "data", train=100, test=20)
    found = masks("resnet20", data, monkeypatch, tmp_path, **choice)
    assert len(set(found.values())) == 1, found


def test_a_segmentation_model_takes_the_norm_of_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = small_pairs(tmp_path / "data", train=8, test=3)
    choice = {"scorer": "px", "sparsity": 0.8, "rounds": 1}
    small = timm.create_model("deeplabv3plus_test_resnet", num_classes=3)
    small.pretrained_cfg["input_size"] = (3, 33, 33)
    save_for_hf(small, tmp_path / "small", safe_serialization=True)
    found = masks(str(tmp_path / "small"), data, monkeypatch, tmp_path, **choice)
    assert len(set(found.values())) == 1, found
    network = load(str(tmp_path / "small"), num_classes=3, seed=0).model
    batches = load_pruning_set(str(data), network, 2, 8, 0)
    by_norm = {
        norm: hf_px.prune(network, batches=batches, norm=norm, progress=False, **choice).digest()
        for norm in ("flow", "batch")
    }
    assert by_norm["flow"] == found["Python"] != by_norm["batch"]
