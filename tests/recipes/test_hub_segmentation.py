"""A segmenter goes round through the Hub: backbone and data from there, the ticket to there, strangers load it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import timm
import torch
from huggingface_hub import HfApi, ModelCard
from PIL import Image
from support.launching import Server, results, small_pairs

import hf_px
from hf_px.cli import main as hf_px_command

STRANGER = """
import json, sys
import hf_px, numpy, timm, torch
from PIL import Image
answers = {}
x = torch.from_numpy(numpy.load(sys.argv[2]))
for way, model in {
    "hf_px": hf_px.from_pretrained(sys.argv[1]),
    "timm": timm.create_model("hf-hub:" + sys.argv[1], pretrained=True).eval(),
}.items():
    with torch.no_grad():
        answers[way] = model(x).double().flatten()[::97].tolist()
print(json.dumps(answers))
"""


@pytest.fixture
def alice(hub: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> HfApi:
    """Logged in, with pictures and masks of hers on the Hub, and a backbone; nothing is cached."""
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    api = HfApi(token="hf_alice")
    folder = small_pairs(tmp_path / "pairs")
    for split, name in (("train", "train"), ("val", "validation")):
        columns = {
            role: [str(path) for path in sorted((folder / split / kind).iterdir())]
            for role, kind in (("image", "images"), ("annotation", "masks"))
        }
        features = datasets.Features({"image": datasets.Image(), "annotation": datasets.Image()})
        rows = datasets.Dataset.from_dict(columns, features=features)
        rows.to_parquet(tmp_path / "parquet" / f"{name}-00000-of-00001.parquet")
    api.create_repo("alice/shapes", repo_type="dataset")
    api.upload_folder(
        repo_id="alice/shapes", folder_path=tmp_path / "parquet", repo_type="dataset", path_in_repo="data"
    )
    torch.manual_seed(0)
    body = timm.create_model("test_resnet", num_classes=7)
    body.pretrained_cfg |= {"mean": (0.3, 0.4, 0.5), "std": (0.2, 0.2, 0.3)}
    timm.models.push_to_hf_hub(body, "alice/backbone", safe_serialization=True, model_card={"license": "mit"})
    return api


def test_from_a_hub_backbone_to_a_segmenter_that_strangers_load(
    alice: HfApi, server: Server, tmp_path: Path, capsys
) -> None:
    printed = server.run(
        tmp_path, "--model", "deeplabv3plus_test_resnet", "--backbone", "alice/backbone", "--data", "alice/shapes",
        "--image_size", 33, "--sparsity", 0.9, "--rounds", 2, "--per_class", 3, "--epochs", 3, "--batch_size", 4,
        "--lr", 0.05, "--push_to_hub", "alice/ticket", "--output_dir", "run",
        env={"HF_TOKEN": "hf_alice"},
    )  # fmt: skip
    assert 'hf_px.from_pretrained("alice/ticket")' in printed
    recorded = results(tmp_path / "run")
    assert recorded["model"]["base"] == "alice/backbone"
    assert recorded["model"]["revision"] == alice.model_info("alice/backbone").sha
    assert recorded["model"]["images"]["mean"] == [0.3, 0.4, 0.5]  # the backbone's

    files = set(alice.list_repo_files("alice/ticket"))
    assert {"ticket.safetensors", "model.safetensors", "results.json", "predictions.png", "README.md"} <= files
    card = ModelCard.load("alice/ticket", token="hf_alice")
    assert card.data.pipeline_tag == "image-segmentation" and card.data.base_model == "alice/backbone"
    assert card.data.datasets == ["alice/shapes"] and card.data.license == "mit"
    measured = {r.metric_type: r.metric_value for r in card.data.eval_results}
    assert measured["mean_iou"] == recorded["results"]["ticket"]["mean_iou"]
    assert "](predictions.png)" in card.text and "IoU by class" in card.text

    # a stranger has the name alone
    x = np.random.default_rng(0).normal(size=(2, 3, 33, 33)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, "alice/ticket", str(tmp_path / "x.npy")],
        env={**os.environ, "HF_HOME": str(tmp_path / "stranger")}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    with torch.no_grad():
        own = hf_px.from_pretrained(tmp_path / "run")(torch.from_numpy(x)).double().flatten()[::97].tolist()
    assert found["hf_px"] == pytest.approx(own, abs=1e-6) and found["timm"] == pytest.approx(own, abs=1e-6)

    # and a picture of hers
    picture = tmp_path / "pairs/val/images/000.png"
    assert hf_px_command(["predict", "alice/ticket", str(picture), "--output", str(tmp_path / "seen.png")]) == 0
    assert "%" in capsys.readouterr().out
    with Image.open(tmp_path / "seen.png") as seen:
        assert seen.width > 2 * Image.open(picture).width
