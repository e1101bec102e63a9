"""Linear operations with constants: averages, factors, interpolation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.path_ops import X, paths
from torch import nn

from hf_px.core.batches import Batch
from hf_px.paths import ONES, SQUARED, replay
from hf_px.paths.linear_ops import ONEDNN, FewRows


@pytest.mark.parametrize(
    "op",
    [
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(2),
        lambda x: x.mean((2, 3)),
        lambda x: 0.25 * x + x / 2,
        lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    ],
)
def test_constants_are_left_alone_in_g_and_h_and_squared_on_squared_paths(op):
    torch.testing.assert_close(paths(op, X, ONES), op(X.square()))
    torch.testing.assert_close(paths(op, X, SQUARED), op(X.square()))
    one = torch.zeros_like(X)
    one[:, :, 2, 3] = 3.0  # a single path: its square is the square of the output
    expected = 9 * (0.25**2 + 0.5**2) if op(torch.ones_like(X)).flatten()[0] == 0.75 else None
    got = paths(op, one)
    if expected is None:
        torch.testing.assert_close(got, op(one).square())
    else:  # two parallel paths, squared before they are added
        assert got[0, 0, 2, 3] == pytest.approx(expected)


@pytest.mark.parametrize("side", [1, 4, 5])
@pytest.mark.parametrize(
    "settings",
    [
        {"kernel_size": 1},
        {"kernel_size": 1, "stride": 2},
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": (1, 3), "stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)},
        {"kernel_size": 3, "padding": "same"},
        {"kernel_size": 3, "padding": 1, "groups": 2},
    ],
    ids=str,
)
def test_a_small_plane_of_one_sample_is_convolved_and_differentiated_as_any_other(side, settings):
    """Up to 4x4 as a matrix product, 5x5 by conv2d: both as conv2d on the squares does it."""
    conv = nn.Conv2d(4, 6, **settings).double()
    x = torch.rand(1, 4, side, side, dtype=torch.float64)
    leaf = conv.weight.detach().square().requires_grad_()
    got = replay(conv, {"weight": leaf}, SQUARED, Batch(x), x).values
    plain = conv.weight.detach().square().requires_grad_()
    expected = conv._conv_forward(x, plain, None)
    torch.testing.assert_close(got, expected)
    toward = torch.rand_like(expected)
    torch.testing.assert_close(*(torch.autograd.grad(y, w, toward)[0] for y, w in ((got, leaf), (expected, plain))))


def test_a_small_plane_is_a_matrix_product():
    """The test above would pass without it."""
    conv, x = nn.Conv2d(4, 6, 3, padding=1), torch.rand(1, 4, 4, 4)
    leaf = conv.weight.detach().square().requires_grad_()
    names = {type(n).__name__ for n in graph_nodes(replay(conv, {"weight": leaf}, SQUARED, Batch(x), x).values.grad_fn)}
    assert "ConvolutionBackward0" not in names


@pytest.mark.skipif(not ONEDNN, reason="this torch has no oneDNN")
def test_the_product_of_few_rows_is_that_of_linear():
    """In float32 it goes through oneDNN, whose gradients are ours."""
    x, weight, toward = torch.rand(4, 30), torch.rand(7, 30), torch.rand(4, 7)
    found = []
    for product in (FewRows.apply, F.linear):
        leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
        y = product(*leaves)
        found.append([y, *torch.autograd.grad(y, leaves, toward)])
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs)


def graph_nodes(node):
    return [] if node is None else [node, *(m for n, _ in node.next_functions for m in graph_nodes(n))]
