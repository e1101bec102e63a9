"""Max pooling hands on the winner; with open gates it sums its window."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.path_ops import X, paths
from torch import nn

from hf_px.paths import (  # fmt: skip
    SQUARED,
)

POOLS = {
    "max": lambda x: F.max_pool2d(x, 2), "max padded": nn.MaxPool2d(3, 2, 1),
    "max dilated": nn.MaxPool2d(2, 1, dilation=2),
    "max ceil": nn.MaxPool2d(3, 2, ceil_mode=True), "max ceil padded": nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    "adaptive max": nn.AdaptiveMaxPool2d(3), "global max": lambda x: F.adaptive_max_pool2d(x, 1),
    "keywords": lambda x: F.max_pool2d(input=x, kernel_size=2, stride=2),
}  # fmt: skip


@pytest.mark.parametrize("name", POOLS)
def test_max_pooling_hands_on_the_winner(name):
    torch.testing.assert_close(paths(POOLS[name], X), POOLS[name](X).square())


@pytest.mark.parametrize("name", POOLS)
def test_max_pooling_with_open_gates_sums_its_window(name):
    """Count by hand: put a one at each place in turn; the sum of the outputs is how many windows hold it."""
    op = POOLS[name]
    x = torch.zeros(64, 1, 8, 8, dtype=torch.float64)
    x.view(64, 64).fill_diagonal_(1.0)
    winners = op(x)  # a one wins every window that holds it
    torch.testing.assert_close(paths(op, x, SQUARED), winners)
