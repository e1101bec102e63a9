"""From a Hub name to a published ticket: the recipe as a user launches it, and strangers who load what it pushed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from huggingface_hub import HfApi, ModelCard
from support.launching import Server, main, results, small_digits
from support.places import REPO
from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor

from hf_px.core.errors import TicketError

STRANGER = REPO / "tests" / "support" / "stranger.py"


@pytest.fixture
def alice(hub: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> HfApi:
    """Logged in, with a data set of hers on the Hub; nothing is cached."""
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    api = HfApi(token="hf_alice")
    api.create_repo("alice/digits", repo_type="dataset")
    (tmp_path / "digits").mkdir()
    folder = small_digits(tmp_path / "digits", train=1024)
    api.upload_folder(repo_id="alice/digits", folder_path=folder, repo_type="dataset", path_in_repo="data")
    return api


def push_timm() -> None:
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=7)
    model.pretrained_cfg["input_size"] = (3, 32, 32)
    timm.models.push_to_hf_hub(model, "alice/backbone", safe_serialization=True, model_card={"license": "mit"})


def push_transformers(folder: Path) -> None:
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=7)
    ResNetForImageClassification(config).save_pretrained(folder)
    # not ImageNet's numbers: who takes those instead gets another accuracy
    ViTImageProcessor(
        size={"height": 24, "width": 24}, image_mean=[0.3, 0.3, 0.3], image_std=[0.4, 0.4, 0.4]
    ).save_pretrained(folder)
    HfApi().create_repo("alice/backbone")
    HfApi().upload_folder(repo_id="alice/backbone", folder_path=folder)


# test_hub_segmentation.py has a backbone of timm's in the default suite
@pytest.mark.parametrize("kind", [pytest.param("timm", marks=pytest.mark.slow), "transformers"])
def test_from_a_hub_name_to_a_ticket_that_strangers_load(
    kind: str, alice: HfApi, server: Server, tmp_path: Path
) -> None:
    push_timm() if kind == "timm" else push_transformers(tmp_path / "backbone")
    printed = server.run(
        tmp_path, "--model", "alice/backbone", "--data", "alice/digits", "--sparsity", 0.7, "--rounds", 4,
        "--epochs", 2, "--batch_size", 16, "--lr", 0.05, "--per_class", 5, "--push_to_hub", "alice/ticket",
        "--output_dir", "run", env={"HF_TOKEN": "hf_alice"},
    )  # fmt: skip
    assert 'hf_px.from_pretrained("alice/ticket")' in printed
    recorded = results(tmp_path / "run")
    base = alice.model_info("alice/backbone")
    assert (recorded["model"]["base"], recorded["model"]["revision"]) == ("alice/backbone", base.sha)

    card = ModelCard.load("alice/ticket", token="hf_alice")
    assert card.data.base_model == "alice/backbone" and card.data.datasets == ["alice/digits"]
    assert card.data.get("license") == ("mit" if kind == "timm" else None)
    assert recorded["results"]["ticket"]["accuracy"] > 0.4  # far from chance: another model would show
    measured = {r.metric_type: r.metric_value for r in card.data.eval_results}
    assert measured["accuracy"] == recorded["results"]["ticket"]["accuracy"]
    pushed = Path(alice.hf_hub_download("alice/ticket", "results.json", cache_dir=tmp_path / "fetched"))
    assert json.loads(pushed.read_text()) == recorded

    groups = (
        [["hf_px", "transformers", "timm"]] if kind == "timm" else [["hf_px", "transformers"], ["transformers alone"]]
    )
    for ways in groups:
        found = strangers(ways, tmp_path / ways[0])
        assert list(found) == ways
        for way, accuracy in found.items():
            assert accuracy == pytest.approx(measured["accuracy"], abs=1e-9), way


def strangers(ways: list[str], home: Path) -> dict[str, float]:
    """What a fresh process measures that knows the ticket's and the data set's name, and has nothing cached."""
    done = subprocess.run(
        [sys.executable, STRANGER, "alice/ticket", "alice/digits", *ways],
        env={**os.environ, "HF_HOME": str(home)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("repo", ["no-owner", "a/b/c", "alice/x..y"])
def test_a_push_to_what_is_no_repo_is_refused_before_the_work(repo: str, hub: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"`push_to_hub` {re.escape(repo)}.*owner/name"):
        main(["--push_to_hub", repo, "--output_dir", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


def test_a_push_without_a_login_is_refused_before_the_work(hub: Any, tmp_path: Path, monkeypatch) -> None:
    flags = ["--push_to_hub", "alice/ticket", "--output_dir", str(tmp_path / "run")]
    with pytest.raises(ValueError, match="nobody is logged in; run hf auth login"):
        main(flags)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(TicketError, match="alice/ticket"):
        main(flags)
    assert not (tmp_path / "run").exists()
