"""Checkpoints: training continues with the same bits, old files go, a damaged one is skipped."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hf_px.training.checkpoint import Checkpoints, load_, state_of
from hf_px.training.config import TrainingOptions
from hf_px.training.loop import make_optimizer


def trained(name: str, steps: int, start=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 5))
    if name == "channels last":
        model = model.to(memory_format=torch.channels_last)
    kind = "adamw" if name == "adamw" else "nesterov"
    optimizer = make_optimizer(model, TrainingOptions(optimizer=kind, lr=0.05, momentum=0.9, weight_decay=1e-2))
    begin = 0
    if start is not None:
        load_(start, model, optimizer, None)
        begin = start.step
    for step in range(begin, steps):
        x = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.arange(8) % 5).backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("name", ["sgd", "adamw", "channels last"])
def test_from_a_checkpoint_on_the_bits_are_the_same(name: str, tmp_path) -> None:
    model, optimizer = trained(name, 4)
    saved = Checkpoints(tmp_path, "x")
    tensors, notes = state_of(model, optimizer, None)
    saved.save(4, tensors, notes | {"more": [1.5, "θ"]})
    found = saved.newest()
    assert found is not None and found.step == 4 and found.notes["more"] == [1.5, "θ"]
    whole, resumed = trained(name, 9)[0].state_dict(), trained(name, 9, found)[0].state_dict()
    assert all(torch.equal(whole[n], resumed[n]) for n in whole)
    assert not torch.equal(whole["0.weight"], model.state_dict()["0.weight"])


def test_old_checkpoints_go_and_a_damaged_one_is_passed_over(tmp_path, capsys) -> None:
    saved = Checkpoints(tmp_path, "x", keep=2)
    other = Checkpoints(tmp_path, "x-y")
    other.save(99, {"w": torch.ones(1)}, {})
    for step in (5, 10, 15):
        saved.save(step, {"w": torch.full((2,), float(step))}, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "x-00000010.safetensors", "x-00000015.safetensors", "x-y-00000099.safetensors",
    ]  # fmt: skip
    newest = tmp_path / "x-00000015.safetensors"
    newest.write_bytes(newest.read_bytes()[:-3])
    found = saved.newest()
    assert found is not None and found.step == 10 and found.tensors["w"].tolist() == [10, 10]
    assert "x-00000015.safetensors: damaged checkpoint" in capsys.readouterr().err
    saved.remove()
    assert saved.newest() is None and other.newest() is not None
    assert math.isclose(float(other.newest().tensors["w"]), 1)
