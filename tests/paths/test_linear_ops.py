"""Linear operations with constants: averages, factors, interpolation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.path_ops import X, paths
from torch import nn

from hf_px.paths import (  # fmt: skip
    ONES,
    SQUARED,
)


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
