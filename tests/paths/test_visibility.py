"""The traps: hidden code, and operations without a rule."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.path_ops import Op
from torch import nn

import hf_px
from hf_px.core.batches import Batches
from hf_px.core.errors import UnsupportedModelError
from hf_px.paths import (  # fmt: skip
    check_visible,
)


def test_an_operation_without_a_rule_is_named_with_its_module():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Op(lambda x: torch.cumprod(x, 1))
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(self.inner(x))

    with pytest.raises(UnsupportedModelError, match=r"inner \(Op\).*cumprod"):
        hf_px.score(Odd(), "px", [torch.randn(2, 4)])
    with pytest.raises(UnsupportedModelError, match="cumprod"):
        hf_px.score(Odd(), "synflow", [torch.randn(2, 4)])
    assert hf_px.prune(Odd(), "magnitude", sparsity=0.5, batches=[torch.randn(2, 4)]).kept == 4  # needs no paths


@pytest.mark.parametrize(
    "op",
    [
        lambda x: x.exp(),
        lambda x: torch.pow(2, x),
        lambda x: x.sort(1)[0],
        lambda x: 1 / (1 + x.abs()),
        lambda x: x.pow(x.abs()),
        lambda x: torch.einsum("ni,ni,ni->ni", x, x, x),
        lambda x: torch.where(x > 0, x, -x),
        lambda x: F.softplus(x),
        lambda x: F.interpolate(x[:, None], 8, mode="linear")[:, 0].log(),
    ],
)
def test_no_non_linear_operation_passes_silently(op):
    model = nn.Sequential(nn.Linear(4, 4), Op(op), nn.LazyLinear(2))
    x = torch.rand(3, 4)
    model(x)
    with pytest.raises(UnsupportedModelError, match="Op"):
        hf_px.score(model, "px", [x])


def test_control_flow_that_depends_on_the_data_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), Op(lambda x: x if x.sum() > 0 else -x), nn.Linear(4, 2))
    with pytest.raises(UnsupportedModelError, match="gt"):
        hf_px.score(model, "px", [torch.randn(2, 4)])


def test_scripted_and_checkpointed_code_is_refused():
    @torch.jit.script
    def hidden(x):
        return torch.relu(x)

    batch = Batches([torch.randn(2, 4)]).first()
    with pytest.raises(UnsupportedModelError, match="Python cannot intercept it"):
        check_visible(nn.Sequential(nn.Linear(4, 4), Op(lambda x: hidden(x))), batch)
    with pytest.raises(UnsupportedModelError, match="0 is scripted"):
        check_visible(nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.ReLU()), batch)
    model = nn.Sequential(nn.Linear(4, 4))
    model.grad_checkpointing = True
    with pytest.raises(UnsupportedModelError, match="checkpointing"):
        check_visible(model, batch)


def test_custom_autograd_functions_are_refused():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 17

    model = nn.Sequential(nn.Linear(4, 4), Op(Square.apply), nn.Linear(4, 2))
    with pytest.raises(UnsupportedModelError, match="Square"):
        hf_px.score(model, "px", [torch.randn(2, 4)])
