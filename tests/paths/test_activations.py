"""Gates of activations, against what each function does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.path_ops import X, paths
from torch import nn

from hf_px.core.batches import Batch
from hf_px.paths import ONES, PATHS, SQUARED, LastReplay, record, replay, ungated

ACTIVATIONS = {
    "F.relu": F.relu, "torch.relu": torch.relu, "x.relu": lambda x: x.relu(), "nn.ReLU": nn.ReLU(),
    "F.relu in place": lambda x: F.relu(x.clone(), inplace=True), "x.relu_": lambda x: x.clone().relu_(),
    "nn.ReLU in place": lambda x: nn.ReLU(inplace=True)(x * 1.0), "x.clamp(min=0)": lambda x: x.clamp(min=0),
    "F.leaky_relu": F.leaky_relu, "nn.LeakyReLU": nn.LeakyReLU(0.2), "F.relu6": F.relu6, "nn.ReLU6": nn.ReLU6(),
    "F.hardtanh": F.hardtanh, "F.gelu": F.gelu, "gelu tanh": nn.GELU(approximate="tanh"), "F.silu": F.silu,
    "nn.SiLU in place": lambda x: nn.SiLU(inplace=True)(x * 1.0), "x * sigmoid(x)": lambda x: x * torch.sigmoid(x),
    "F.hardswish": F.hardswish, "nn.Hardswish": nn.Hardswish(), "F.elu": F.elu, "F.mish": F.mish, "tanh": torch.tanh,
    "nn.PReLU": nn.PReLU().double(),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_gate_is_y_over_x(name):
    """(a · x)² = f(x)²: the replayed square of each path is the square of the real output."""
    op = ACTIVATIONS[name]
    torch.testing.assert_close(paths(op, X), op(X).detach().square(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gates_are_not_negative_and_at_zero_the_derivative(name):
    x = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    assert torch.equal(paths(ACTIVATIONS[name], x), x)  # finite: 0/0 has been seen to
    assert (paths(ACTIVATIONS[name], X) >= 0).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_open_gates_let_everything_through(name):
    torch.testing.assert_close(paths(ACTIVATIONS[name], X, SQUARED), X.square())


def test_ungated_leaves_activations_out():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)).double()
    x = X[0, 0, :, :4]
    with ungated():
        y = model(x)
    torch.testing.assert_close(y, x @ model[0].weight.T @ model[2].weight.T)


class _Branches(nn.Module):
    """Paths around, through and after a ReLU, which changes a tensor that the sum uses again if it is in place."""

    def __init__(self, inplace):
        super().__init__()
        self.first, self.last, self.inplace = nn.Linear(5, 6, bias=False), nn.Linear(3, 4, bias=False), inplace

    def forward(self, x):
        z = self.first(x)
        half = z[:, :3]  # a view: what happens to it happens to z
        gated = F.relu(half, inplace=self.inplace)
        rest = z if self.inplace else torch.cat([gated, z[:, 3:]], 1)
        return self.last(gated) + rest[:, :4]


def test_an_in_place_gate_has_the_gradient_of_one_out_of_place():
    x, found = torch.randn(7, 5, dtype=torch.float64), []
    for inplace in (False, True):
        torch.manual_seed(0)
        model = _Branches(inplace).double()
        _, tape = record(model, {}, Batch(x), "batch")
        leaves = {name: p.detach().square().requires_grad_() for name, p in model.named_parameters()}
        flow = replay(model, leaves, PATHS, Batch(x), x.square(), tape)
        found.append([flow.values, *torch.autograd.grad(flow.values.sum(), list(leaves.values()))])
    torch.testing.assert_close(*found)


def test_the_last_replay_gives_up_gates_and_keeps_normalisation():
    """Same values, and a tape that a view with open gates can still follow."""
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    x = torch.randn(7, 5)
    _, tape = record(model, {}, Batch(x), "batch")
    expected = replay(model, {}, ONES, Batch(x), x.square(), list(tape))
    got = replay(model, {}, ONES, Batch(x), x.square(), tape, LastReplay)
    torch.testing.assert_close(got.values, expected.values, rtol=0, atol=0)
    assert [entry.saved is None for entry in tape] == [False, True]
    replay(model, {}, SQUARED, Batch(x[:1]), torch.ones(1, 5), tape)
