"""push --export: a file beside the ticket that a process without hf_px downloads and runs by the card's own code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.loopback import LoopbackHub
from support.tickets import deeplab_ticket, own_ticket, timm_ticket

import hf_px
from hf_px.cli import main
from hf_px.core.forward import output_tensor
from hf_px.deploy.real_images import photographs, prepared
from hf_px.tickets.predict import classify, ticket_images

X = "alice/x"
READER = Path(__file__).parents[1] / "support" / "exported_reader.py"


@pytest.fixture(autouse=True)
def alice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_alice")


def run_by_the_card(folder: Path, image: Image.Image, file: str) -> tuple[dict[str, Any], str]:
    """(logits and imports, what else it printed)"""
    image.save(folder / "photo.jpg", quality=100, subsampling=0)
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, str(READER), X, file],
        cwd=folder,
        env=env | {"HF_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *printed, last = done.stdout.splitlines()
    return json.loads(last), "\n".join(printed)


@pytest.mark.parametrize(("to", "file"), [("onnx", "ticket.onnx"), ("openvino", "ticket.xml"), ("torch", "ticket.pt2")])
def test_it_runs_where_hf_px_is_not(hub: LoopbackHub, tmp_path: Path, to: str, file: str) -> None:
    names = ["tench", "crane", "lemon", "mask", "otter"]
    hf_px.Ticket(*timm_ticket(), class_names=names).save_pretrained(tmp_path / "ticket")
    assert main(["push", str(tmp_path / "ticket"), X, "--export", to]) == 0
    photograph = photographs()[1]
    found, printed = run_by_the_card(tmp_path, photograph, file)
    assert found["imported"] == (["torch"] if to == "torch" else [])
    model = hf_px.from_pretrained(tmp_path / "ticket")
    seen = Image.open(tmp_path / "photo.jpg")
    settings = ticket_images(tmp_path / "ticket", model)
    with torch.no_grad():
        expected = model(prepared([seen], settings, letterbox=False))
    logits = torch.tensor(found["logits"])
    # PIL's crop and timm's differ by a fraction of a pixel
    assert float((logits - expected).abs().max() / expected.abs().max()) < 0.02
    assert printed == classify(model, seen, settings, k=1)[0][0]


def test_a_segmenter_runs_where_hf_px_is_not(hub: LoopbackHub, tmp_path: Path) -> None:
    hf_px.Ticket(*deeplab_ticket()).save_pretrained(tmp_path / "ticket")
    assert main(["push", str(tmp_path / "ticket"), X, "--export", "onnx"]) == 0
    found, _ = run_by_the_card(tmp_path, photographs()[0].resize((33, 20)), "ticket.onnx")  # no resize is left to do
    model = hf_px.from_pretrained(tmp_path / "ticket")
    x = prepared([Image.open(tmp_path / "photo.jpg")], ticket_images(tmp_path / "ticket", model), letterbox=True)
    with torch.no_grad():
        expected = output_tensor(model(x))
    logits = torch.tensor(found["logits"])
    assert logits.shape == expected.shape
    assert float((logits - expected).abs().max() / expected.abs().max()) < 1e-4


def test_the_dry_run_shows_it_and_a_later_push_removes_it(
    hub: LoopbackHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "ticket")
    hf_px.Ticket(*own_ticket()).save_pretrained(path)
    assert main(["push", path, X, "--export", "openvino", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert hub.requests == []
    shown = dict(re.findall(r"^(ticket\.\w+)  +([\d,]+)", out, re.M))
    assert main(["push", path, X, "--export", "openvino"]) == 0
    assert "and ticket.xml and ticket.bin, for OpenVINO\ninput   pixel_values: batch x 3 x 32 x 32" in (
        capsys.readouterr().out
    )
    sent = hub.files(X)
    assert shown == {name: f"{len(sent[name]):,}" for name in ("ticket.safetensors", "ticket.xml", "ticket.bin")}
    assert "| `ticket.bin` | " in sent["README.md"].decode()
    assert main(["push", path, X]) == 0  # of the ticket as it is now, nothing was exported
    assert not {"ticket.xml", "ticket.bin"} & set(hub.files(X))
    assert "ticket.bin" not in hub.files(X)["README.md"].decode()


def test_the_card_of_a_directory_does_not_speak_for_a_file_that_may_be_of_an_older_ticket(tmp_path: Path) -> None:
    made = hf_px.Ticket(*own_ticket())
    made.save_pretrained(tmp_path, files={"ticket.onnx": b"of last week"})
    assert "ticket.onnx" not in (tmp_path / "README.md").read_text()
