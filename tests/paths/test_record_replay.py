"""Replay of a recorded network: homogeneous, exact over many layers, unchanged by writing in place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.path_ops import X
from torch import nn

import hf_px
from hf_px.core.batches import Batches
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable
from hf_px.paths import (  # fmt: skip
    ABSOLUTE,
    ONES,
    PATHS,
    SQUARED,
    edge_weights,
    record,
    replay,
)


class Block(nn.Module):
    """A DeepLab-style head: atrous branches, image pooling, upsampling, concatenation, residual."""

    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 3, 3, padding=2, dilation=2)
        self.b = nn.Conv2d(4, 3, 1)
        self.c = nn.Conv2d(4, 3, 1)
        self.join = nn.Conv2d(9, 4, 1)

    def forward(self, x):
        pooled = F.interpolate(F.relu(self.c(F.adaptive_avg_pool2d(x, 1))), size=x.shape[-2:], mode="bilinear")
        y = self.join(torch.cat([F.relu(self.a(x)), F.relu(self.b(x)), pooled], 1))
        return F.interpolate(x + y, scale_factor=2, mode="bilinear", align_corners=False)


@pytest.mark.parametrize("view", [ONES, SQUARED, PATHS, ABSOLUTE])
def test_replay_is_homogeneous_with_additive_terms_zeroed(view):
    """replay(4x) = 4 · replay(x) although the layers have biases: a vacuous pass would show here."""
    torch.manual_seed(0)
    model = Block().double()
    weights = Mask.ones(prunable(model)).weights(model)
    batch = Batches([X]).first()
    _, tape = record(model, weights, batch, "batch")
    edges = edge_weights(weights, view, torch.float64)
    one, four = (replay(model, edges, view, batch, c * X.square(), tape) for c in (1, 4))
    torch.testing.assert_close(four.values, 4 * one.values)
    assert not torch.allclose(model(2 * X), 2 * model(X))  # the network itself is not


class InPlace(nn.Module):
    """Writes into tensors that are read again: aliases of replay must not leak."""

    def __init__(self, careful):
        super().__init__()
        self.bn = nn.BatchNorm2d(4)
        self.conv = nn.Conv2d(4, 4, 1, bias=False)
        self.careful = careful

    def forward(self, x):
        x = self.conv(x)
        y = self.bn(x)
        y = F.relu(y.clone()) if self.careful else y.relu_()
        z = F.relu(x)
        gate = torch.sigmoid(x)
        y = y * gate
        gate.zero_()  # after its use: the recorded gate must not be the changed one
        if self.careful:
            z = z + y
        else:
            z += y
        return x + z  # x itself, which neither may have changed


@pytest.mark.parametrize("view", [ONES, SQUARED, PATHS])
def test_writing_in_place_changes_nothing(view):
    results = []
    for careful in (True, False):
        torch.manual_seed(0)
        model = InPlace(careful).double()
        weights = Mask.ones(prunable(model)).weights(model)
        batch = Batches([X]).first()
        _, tape = record(model, weights, batch, "batch")
        with torch.no_grad():
            results.append(
                replay(model, edge_weights(weights, view, torch.float64), view, batch, X.square(), tape).values
            )
    torch.testing.assert_close(*results)
    assert torch.equal(batch.x, X)


def test_deep_networks_stay_in_range_and_exact():
    """300 layers of width 64: float32 would overflow after 20 (64^300 = 2^1800); the exponent carries it."""
    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(300)])
    for p in model.parameters():
        nn.init.ones_(p)
    weights = Mask.ones(prunable(model)).weights(model)
    batch = Batches([torch.ones(2, 64)]).first()
    _, tape = record(model, weights, batch, "batch")
    flow = replay(model, edge_weights(weights, ONES, torch.float32), ONES, batch, batch.x, tape)
    assert flow.exponent + float(flow.values[0, 0].log2()) == 1800
    scores = hf_px.score(model, "px", [batch.x])
    for s in scores.values():
        assert torch.isfinite(s).all() and (s == s[0, 0]).all() and s[0, 0] > 0
    assert len({float(s[0, 0]) for s in scores.values()}) == 1  # flow is conserved, all weights alike


def test_small_weights_behind_a_huge_bound_do_not_overflow_on_the_way_back():
    """R of g is 2^840, h is 1e-9: the gradient divides by every small activation on its way."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(140)])
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.11)
    scores = hf_px.score(model, "px", [torch.ones(2, 64)])
    assert all(torch.isfinite(s).all() and (s > 0).all() for s in scores.values())
