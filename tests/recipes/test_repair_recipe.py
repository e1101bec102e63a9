"""recipes/prune_finetune.py on trained weights: repaired before training, by default; killed and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from support.launching import Server, exists, outcome, results, small_digits

import hf_px
from hf_px.cli import main as command
from hf_px.core.mask import Mask


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    place = tmp_path_factory.mktemp("made")
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=7).train()
    with torch.no_grad():
        for _ in range(30):
            model(torch.randn(8, 3, 32, 32))
    timm.models.save_for_hf(model.eval(), place / "trained", model_config={"num_classes": 7})
    return [
        "--model", place / "trained", "--data", small_digits(place / "digits"), "--image_size", 32, "--rounds", 6,
        "--epochs", 1, "--lr", 0.01, "--batch_size", 32, "--dense", "skip", "--output_dir", "run",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole(server: Server, flags: list[object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody killed."""
    place = tmp_path_factory.mktemp("whole")
    assert "repair: " in server.run(place, *flags)
    return place / "run"


def test_trained_weights_are_repaired_by_default_and_the_ticket_says_so(whole: Path) -> None:
    found, ticket = results(whole), hf_px.Ticket.from_pretrained(whole)
    assert (found["settings"]["scorer"], found["settings"]["sparsity"]) == ("magnitude", 0.8)
    assert found["settings"]["repair"] is True
    assert ticket.provenance["repair"] == found["repair"]
    repaired = found["repair"]["errors"]
    assert repaired.keys() | {"fc.weight"} == ticket.mask.bits.keys() | {"fc.weight"}
    assert all(after <= before * (1 + 1e-5) for before, after in repaired.values())
    assert "refitted by least squares" in (whole / "README.md").read_text()


def test_killed_during_the_rounds_it_ends_with_the_same_bits(
    server: Server, whole: Path, flags: list[object], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    server.run(tmp_path, *flags, kill=exists(run, "checkpoints/mask.safetensors"))
    assert not results(run)["finished"]
    assert "pruning: continues after round" in server.run(tmp_path, *flags, "--resume")
    assert outcome(run) == outcome(whole)


def test_the_report_shows_the_repair(whole: Path, tmp_path: Path) -> None:
    page = tmp_path / "report"
    assert command(["report", str(whole), "--output", str(page), "--skip", "spectrum", "latency"]) == 0
    before, after = zip(*results(whole)["repair"]["errors"].values())
    text = (page / "report.md").read_text()
    assert f"{sum(before) / len(before):.1%} before, {sum(after) / len(after):.1%} after" in text


def test_without_repair_the_kept_weights_start_as_they_were(
    server: Server, flags: list[object], tmp_path: Path
) -> None:
    server.run(tmp_path, *flags, "--repair", "false", "--rounds", 1, "--lr", 1e-7, "--weight_decay", 0)
    found = hf_px.Ticket.from_pretrained(tmp_path / "run")
    assert "repair" not in results(tmp_path / "run")
    dense = timm.create_model(f"local-dir:{flags[1]}", pretrained=True)
    mask = Mask({name: bits for name, bits in found.mask.bits.items() if name != "fc.weight"})
    for name, bits in mask.bits.items():
        own = found.to_model().get_parameter(name)
        torch.testing.assert_close(own, dense.get_parameter(name) * bits, atol=1e-4, rtol=0)
