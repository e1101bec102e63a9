"""Weights on a path, counted by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import hf_px
from hf_px.core.batches import Batches
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable
from hf_px.paths import (  # fmt: skip
    live_weights,
    weights_that_steer,
)


def test_live_weights_by_hand():
    """2-3-2; unit 0 of the middle has no way out, unit 1 no way in."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    first = torch.tensor([[1, 1], [0, 0], [1, 0]], dtype=torch.bool)
    second = torch.tensor([[0, 1, 1], [0, 1, 0]], dtype=torch.bool)
    live = live_weights(model, Mask({"0.weight": first, "2.weight": second}), Batches([torch.ones(1, 2)]).first())
    assert live["0.weight"].tolist() == [[False, False], [False, False], [True, False]]
    assert live["2.weight"].tolist() == [[False, False, True], [False, False, False]]


def test_queries_and_keys_are_live_although_they_lie_on_no_path():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x):
            return self.out(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)).mean(1))

    model, x = Head(), torch.randn(2, 3, 4)
    mask = Mask.ones(prunable(model))
    off = weights_that_steer(model, mask.weights(model), Batches([x]).first())
    assert set(off) == {"q.weight", "k.weight"} and all(bits.all() for bits in off.values())
    assert all((s > 0).all() for s in hf_px.score(model, "px", [x]).values())  # by their share in the trace
    assert all(live.all() for live in live_weights(model, mask, Batches([x]).first()).values())
    # without queries the attention is uniform: values still get through, keys no longer matter
    mask = Mask({**mask.bits, "q.weight": torch.zeros(4, 4, dtype=torch.bool)})
    live = live_weights(model, mask, Batches([x]).first())
    assert live["v.weight"].all() and not live["k.weight"].any()
