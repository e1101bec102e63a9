"""Tickets, masks and run directories that the first version wrote, before its layout changed, load as they did.

They were made by these commands, the second of which was stopped after round 2:

    python recipes/prune_finetune.py --model resnet20 --data digits --image_size 8 --train_images 100 --test_images 50
        --per_class 2 --scorer snip --sparsity 0.98 --rounds 4 --epochs 1 --batch_size 50 --lr 0.05 --dense skip
        --layout packed --output_dir out/run
    hf-px prune resnet20 --scorer magnitude --sparsity 0.98 --output pruned --quiet
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.launching import Server, results
from support.places import FIXTURES

import hf_px
from hf_px.tickets.mask_file import load_mask

OLD = FIXTURES / "version-0"
FLAGS = [
    "--model", "resnet20", "--data", "digits", "--image_size", 8, "--train_images", 100, "--test_images", 50,
    "--per_class", 2, "--scorer", "snip", "--sparsity", 0.98, "--rounds", 4, "--epochs", 1, "--batch_size", 50,
    "--lr", 0.05, "--dense", "skip", "--layout", "packed", "--output_dir", "out/run",
]  # fmt: skip


@pytest.mark.parametrize("name", ["finished-run", "pruned"])
def test_tickets(name: str) -> None:
    ticket = hf_px.Ticket.from_pretrained(OLD / name)
    known = (
        results(OLD / name)["mask"] if name == "finished-run" else json.loads((OLD / name / "prune.json").read_text())
    )
    assert (ticket.mask.digest(), ticket.mask.kept) == (known["digest"], known["kept"])
    model = ticket.to_model()
    for tensor, bits in ((dict(model.named_parameters())[name], bits) for name, bits in ticket.mask.bits.items()):
        assert not tensor[~bits].any() and tensor[bits].any()


def test_masks() -> None:
    mask, notes = load_mask(OLD / "mask.safetensors")
    assert mask.digest() == hf_px.Ticket.from_pretrained(OLD / "pruned").mask.digest()
    assert notes == {"model": "resnet20", "scorer": "magnitude", "sparsity": "0.98", "rounds": "1", "seed": "0"}


def test_a_finished_run_is_known_as_finished(server: Server, tmp_path: Path) -> None:
    shutil.copytree(OLD / "finished-run", tmp_path / "out" / "run")
    said = server.run(tmp_path, *FLAGS)
    assert "training, ticket" not in said and "out/run holds this run, finished before" in said
    assert results(tmp_path / "out" / "run") == results(OLD / "finished-run")


def test_an_interrupted_run_is_resumed(server: Server, tmp_path: Path) -> None:
    shutil.copytree(OLD / "interrupted-run", tmp_path / "out" / "run")
    assert "pruning: continues after round 2 of 4" in server.run(tmp_path, *FLAGS, "--resume")
    found, known = results(tmp_path / "out" / "run"), results(OLD / "finished-run")
    assert found["finished"] and found["mask"]["digest"] == known["mask"]["digest"]
    refused = server.run(tmp_path, *FLAGS, "--lr", "0.1", code=1)
    assert "holds another run: lr was 0.05, now 0.1" in refused
