"""recipes/prune_finetune.py --scope channel: the smaller network is trained and published; killed and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.launching import Server, exists, outcome, results, small_digits

import hf_px


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    return [
        "--data", small_digits(tmp_path_factory.mktemp("digits")), "--model", "resnet20", "--image_size", 16,
        "--scope", "channel", "--of", "macs", "--scorer", "px-path", "--rounds", 3, "--per_class", 4, "--sparsity", 0.5,
        "--epochs", 2, "--batch_size", 32, "--checkpoint_steps", 2, "--dense", "skip", "--output_dir", "run",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole(server: Server, flags: list[object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("whole")
    assert "cut to the channels that stay: " in server.run(place, *flags)
    return place / "run"


def test_the_ticket_is_the_small_network(whole: Path) -> None:
    found, ticket = results(whole), hf_px.Ticket.from_pretrained(whole)
    before, after = found["shrunk"]["macs"]
    assert after <= before / 2 and ticket.provenance["shrunk"] == found["shrunk"]
    assert ticket.mask.sparsity == 0 and ticket.mask.total == found["shrunk"]["weights"][1] < 270_896
    assert sum(p.numel() for p in hf_px.from_pretrained(whole).parameters()) < 150_000
    assert "## Width" in (whole / "README.md").read_text()


def test_killed_in_training_it_ends_with_the_same_bits(
    server: Server, whole: Path, flags: list[object], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    server.run(tmp_path, *flags, kill=exists(run, "checkpoints/ticket-*"))
    assert not results(run)["finished"]
    server.run(tmp_path, *flags, "--resume")
    assert outcome(run) == outcome(whole)
