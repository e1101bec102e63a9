"""A bare operation as a model, and its replay along paths, for the tests of single rules."""

from __future__ import annotations

import torch
from torch import nn

from hf_px.core.batches import Batches
from hf_px.paths import (  # fmt: skip
    PATHS,
    record,
    replay,
)


class Op(nn.Module):
    """A bare operation between two fixed linear layers, so that there is something to prune."""

    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, x):
        return self.op(x)


def paths(op, x, view=PATHS):
    """The operation replayed on x² with the gates recorded on x."""
    model, batch = Op(op), Batches([x]).first()
    _, tape = record(model, {}, batch, "batch")
    with torch.no_grad():
        flow = replay(model, {}, view, batch, x.square(), tape)
    return torch.ldexp(flow.values, torch.tensor(flow.exponent))


X = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
