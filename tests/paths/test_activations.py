"""Gates of activations, against what each function does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.path_ops import X, paths
from torch import nn

from hf_px.paths import (  # fmt: skip
    SQUARED,
    ungated,
)

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
