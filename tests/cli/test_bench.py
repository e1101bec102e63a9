"""hf-px bench: figures that agree with each other, the card, wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from support.tickets import own_ticket

import hf_px
from hf_px.cli import main
from hf_px.tickets.card import SPEED


@pytest.fixture
def ticket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_PX_CACHE", str(tmp_path / "cache"))
    hf_px.Ticket(*own_ticket()).save_pretrained(tmp_path / "ticket")
    return tmp_path / "ticket"


def test_its_figures_agree(ticket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--batch", "2", "--image-size", "16", "--seconds", "1", "--plan", "--json"]
    assert main(["bench", str(ticket), *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["runtime"]: row for row in found["rows"]}
    dense, sparse = rows["torch, dense"], rows["hf_px, sparse"]
    assert found["batch"] == 2 and found["image_size"] == [3, 16, 16]
    assert dense["speedup"] == 1 and sparse["difference"] < 1e-4
    assert rows["ONNX Runtime, dense"]["difference"] < 1e-4 and rows["OpenVINO, dense"]["difference"] < 1e-4
    assert sparse["speedup"] == pytest.approx(dense["latency"]["median"] / sparse["latency"]["median"])
    assert sparse["images_per_second"] == pytest.approx(2 / sparse["latency"]["median"])
    assert sparse["weight_bytes"] < dense["weight_bytes"] / 2
    kept = sum(row["kept"] or 0 for row in found["plan"])
    # a kept weight may be exactly zero: the runtime leaves it out
    assert 0 <= hf_px.Ticket.from_pretrained(ticket).mask.kept - kept <= 22


def test_the_table_names_the_machine_and_the_card_the_figures(ticket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (ticket / "ticket.safetensors").read_bytes()
    assert "Not measured" in (ticket / "README.md").read_text()
    assert main(["bench", str(ticket), "--seconds", "1", "--save"]) == 0
    shown = capsys.readouterr().out
    assert "1 image of 32x32" in shown and "1 thread" in shown and "hf_px, sparse" in shown
    speed = json.loads((ticket / SPEED).read_text())
    card = (ticket / "README.md").read_text()
    assert f"| dense, in torch | {speed['dense_ms']:.3g} |" in card and "times as fast, measured by" in card
    assert (ticket / "ticket.safetensors").read_bytes() == before
    (ticket / SPEED).write_text(json.dumps(speed | {"digest": "0" * 64}))  # of another ticket
    hf_px.Ticket.from_pretrained(ticket).save_pretrained(ticket)
    assert "Not measured" in (ticket / "README.md").read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["nowhere/at/all"], "nowhere/at/all"),
        (["ticket", "--batch", "0"], "--batch: 0 is too small"),
        (["me/ticket", "--save"], "--save writes into a directory, and me/ticket is none"),
    ],
)
def test_wrong_input(
    flags: list[str], message: str, ticket: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    monkeypatch.chdir(ticket.parent)
    try:
        code = main(["bench", *flags])
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == 2 and message in capsys.readouterr().err


def test_predict_runs_sparse_and_says_the_same(
    ticket: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    Image.new("RGB", (40, 40), (200, 30, 90)).save(tmp_path / "photo.png")
    found = {}
    for runtime in ("dense", "auto", "sparse", "auto again"):
        words = ["predict", str(ticket), str(tmp_path / "photo.png"), "--json", "--runtime", runtime.split()[0]]
        assert main(words) == 0
        found[runtime] = json.loads(capsys.readouterr().out)["classes"]
        plans = list((tmp_path / "cache" / "plans").glob("*"))
        assert bool(plans) == (runtime in ("sparse", "auto again"))  # auto does not compile
    for classes in found.values():
        assert [each["class"] for each in classes] == [each["class"] for each in found["dense"]]
        for ours, dense in zip(classes, found["dense"]):
            assert ours["probability"] == pytest.approx(dense["probability"], abs=1e-5)
