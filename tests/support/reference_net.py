"""Networks with reference numbers: the ResNet-20 of ../shared/reference, built from the description in
../shared/README.md, and the tiny one of data/reference_small.npz, which ships with the tests."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.places import FIXTURES, SHARED

SMALL = FIXTURES / "reference_small.npz"
REFERENCE = SHARED / "reference"

needs_reference = pytest.mark.skipif(
    not REFERENCE.is_dir(), reason=f"reference numbers are absent: no {REFERENCE}; tests/fixtures has a small extract"
)


class Scale(nn.Module):
    """An identity shortcut as the reference has it: times a weight of ones that nobody prunes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = Scale(outputs)
        if stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ReferenceResNet20(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        plan = [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2 + [(32, 64, 2)] + [(64, 64, 1)] * 2
        self.blocks = nn.Sequential(*(Block(*row) for row in plan))
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn(self.conv(x))))
        return self.fc(x.mean((2, 3)))


def reference_net() -> ReferenceResNet20:
    """The network with its weights of seed 0."""
    from safetensors.torch import load_file

    net = ReferenceResNet20()
    net.load_state_dict(load_file(REFERENCE / "resnet20_seed0_init.safetensors"))
    return net.train()


def reference_batch() -> tuple[Tensor, Tensor]:
    """Its 100 inputs and labels, in order."""
    from safetensors.torch import load_file

    data = load_file(REFERENCE / "data_seed0.safetensors")
    return data["x"], data["y"]


def reference_numbers(which: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(round-1 scores, final mask) by name, for example of `released_SNIP`."""
    with np.load(REFERENCE / f"{which}_seed0.npz") as file:
        parts = {"score1": {}, "mask": {}}
        for key in file.files:
            kind, name = key.split("/", 1)
            parts[kind][name] = torch.from_numpy(file[key])
    return parts["score1"], parts["mask"]


class SmallNet(nn.Module):
    """The network that data/make_reference.py writes out in formulas."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.block = Block(4, 6, 2)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.block(F.relu(self.bn(self.conv(x)))).mean((2, 3)))


def small_reference() -> tuple[SmallNet, list[tuple[Tensor, Tensor]], dict[str, dict[str, Tensor]]]:
    """(network in float64, its batches, {method: scores by name}); see data/make_reference.py."""
    parts: dict[str, dict[str, Tensor]] = {}
    with np.load(SMALL) as file:
        for key in file.files:
            kind, _, name = key.partition("/")
            parts.setdefault(kind, {})[name] = torch.from_numpy(file[key])
    x, y = (parts.pop(key)[""] for key in ("x", "y"))
    net = SmallNet().double()
    counters = {name: b for name, b in net.named_buffers() if name.endswith("num_batches_tracked")}
    net.load_state_dict({**counters, **parts.pop("state")})
    return net, list(zip(x, y)), parts
