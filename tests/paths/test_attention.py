"""Attention weights are gates of the values."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.path_ops import paths
from torch import nn

from hf_px.core.batches import Batches
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable
from hf_px.paths import (  # fmt: skip
    ABSOLUTE,
    PATHS,
    edge_weights,
    record,
    replay,
)


def test_heads_that_share_the_values_of_one_each_have_them():
    q, v = torch.randn(2, 3, 5, 4, dtype=torch.float64), torch.randn(2, 1, 5, 4, dtype=torch.float64)
    found = paths(lambda v: F.scaled_dot_product_attention(q, v, v), v, ABSOLUTE)
    torch.testing.assert_close(found, v.square().sum(-2, keepdim=True).expand(2, 3, 5, 4))


@pytest.mark.parametrize("kind", ["fused", "explicit", "module", "module batch first", "masked"])
def test_attention_weights_are_gates_of_the_values(kind):
    """With the attention A held, out = A · V: on squared paths A² · V²."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    if kind in ("fused", "explicit", "masked"):
        bias = torch.randn(5, 5, dtype=torch.float64) if kind == "masked" else None

        def op(x):
            if kind == "explicit":
                return (x @ x.transpose(1, 2) / 8**0.5).softmax(-1) @ x
            return F.scaled_dot_product_attention(x, x, x, attn_mask=bias)

        logits = x @ x.mT / 8**0.5
        a = (logits if bias is None else logits + bias).softmax(-1)
        if kind == "explicit":
            # v and A·v: A is frozen, so the product is linear in v alone
            torch.testing.assert_close(paths(op, x), a.square() @ x.square())
        else:
            torch.testing.assert_close(paths(op, x), a.square() @ x.square())
        return
    first = kind.endswith("first")
    mha = nn.MultiheadAttention(8, 2, batch_first=first).double().eval()

    def op(x):
        return mha(x, x, x, need_weights=False)[0]

    inputs = x if first else x.transpose(0, 1).contiguous()
    _, a = mha(inputs, inputs, inputs, average_attn_weights=False)
    tokens = x.square()
    wv, wo = mha.in_proj_weight[16:].detach().square(), mha.out_proj.weight.detach().square()
    v = (tokens @ wv.T).view(2, 5, 2, 4).transpose(1, 2)
    expected = (a.square() @ v).transpose(1, 2).reshape(2, 5, 8) @ wo.T
    model, batch = nn.Module(), Batches([inputs]).first()
    model.mha = mha
    model.forward = op
    weights = Mask.ones(prunable(model)).weights(model)
    _, tape = record(model, weights, batch, "batch")
    flow = replay(model, edge_weights(weights, PATHS, torch.float64), PATHS, batch, inputs.square(), tape)
    got = flow.values if first else flow.values.transpose(0, 1)
    torch.testing.assert_close(got, expected)
