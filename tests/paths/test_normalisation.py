"""Normalisation layers scale by γ/σ."""

from __future__ import annotations

import pytest
import torch
from support.path_ops import Op, X, paths
from torch import nn

from hf_px.core.batches import Batches
from hf_px.paths import (  # fmt: skip
    ONES,
    SQUARED,
    record,
    replay,
)

NORMS = {
    "batch": nn.BatchNorm2d(4), "layer": nn.LayerNorm([8, 8]), "group": nn.GroupNorm(2, 4),
    "instance": nn.InstanceNorm2d(4, affine=True), "rms": nn.RMSNorm([8, 8]),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMS)
def test_normalisation_is_gamma_over_sigma(name):
    """y = γ/σ · (x - μ) + β: differences within a normalised group show γ/σ, computed here by torch itself."""
    norm = NORMS[name].double()
    for p in norm.parameters():
        nn.init.normal_(p, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        y = norm.train()(X)
        shift = norm.bias if getattr(norm, "bias", None) is not None else torch.zeros(())
        shift = shift.view(1, -1, 1, 1) if shift.dim() == 1 and name != "layer" else shift
        gain = norm.weight.view(1, -1, 1, 1) if norm.weight.dim() == 1 else norm.weight
        normal = (y - shift) / gain
        ratio = (normal[..., 1:, :] - normal[..., :-1, :]) / (X[..., 1:, :] - X[..., :-1, :])  # 1/σ
    factor = (gain * torch.cat([ratio[..., :1, :], ratio], -2)).square()
    torch.testing.assert_close(paths(norm, X), X.square() * factor, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(paths(norm, X, ONES), X.square())  # left out of g


def test_on_one_row_a_layer_norm_scales_by_the_mean_over_samples():
    norm = nn.LayerNorm([8, 8], elementwise_affine=False).double()
    model, batch = Op(norm), Batches([X]).first()
    _, tape = record(model, {}, batch, "batch")
    row = batch.row()
    h = replay(model, {}, SQUARED, row, torch.ones_like(row.x), tape)
    expected = 1 / (X.var((2, 3), unbiased=False, keepdim=True) + norm.eps)
    torch.testing.assert_close(h.values, expected.mean(0, keepdim=True).expand(1, 4, 8, 8))


@pytest.mark.parametrize("keepdim", [True, False])
def test_a_standard_deviation_by_hand_is_a_normalisation(keepdim):
    """x / std(x), as some models write it: on squared paths x² / σ², in h the mean over samples."""

    def op(x):
        std = x.std((2, 3), keepdim=keepdim)
        return x / (std if keepdim else std[..., None, None])

    sigma = X.std((2, 3), keepdim=True)
    torch.testing.assert_close(paths(op, X), X.square() / sigma.square())
    model, batch = Op(op), Batches([X]).first()
    _, tape = record(model, {}, batch, "batch")
    row = batch.row()
    h = replay(model, {}, SQUARED, row, torch.ones_like(row.x), tape)
    torch.testing.assert_close(h.values, (1 / sigma.square().mean(0, keepdim=True)).expand(1, 4, 8, 8))
