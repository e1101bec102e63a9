"""A view: every path p counts Π|θ|^edges · Π a^gates, so a pair of numbers decides which network is run.

    g of the paper   edges 0, gates 2    all parameters one, the recorded gates (for ReLU a² = a)
    h of the paper   edges 2, gates 0    squared parameters, every gate open
    SynFlow          edges 1, gates 0    absolute parameters, every gate open
    px-path          edges 2, gates 2    the square of every path of the network itself
    h by its flow    as h, but normalised by its own flow instead of the network's statistics

Constants that are neither parameter nor gate (average pooling, resizing, x · 0.5) stay unchanged in g and h. That is
sound: with c split as √c · √c between the two factors, Cauchy-Schwarz still bounds the trace, and where c is the same
on all paths the product g · h is the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core.mask import MaskedWeights


@dataclass(frozen=True)
class View:
    edges: int
    gates: int
    own_flow: bool = False  # normalisation divides by the view's own flow

    @property
    def constants(self) -> int:
        return max(1, (self.edges + self.gates) // 2)


ONES = View(edges=0, gates=2)
SQUARED = View(edges=2, gates=0)
FLOW = View(edges=2, gates=0, own_flow=True)
ABSOLUTE = View(edges=1, gates=0)
PATHS = View(edges=2, gates=2)


def power(values: Tensor, exponent: int) -> Tensor:
    """|values|^exponent without pow's rounding; exponent 0 gives ones, for 0 too."""
    if exponent == 0:
        return torch.ones_like(values)
    return values.abs() if exponent == 1 else values.square()


def edge_weights(weights: MaskedWeights, view: View, dtype: torch.dtype, leaves: bool = False) -> dict[str, Tensor]:
    """|θ|^edges ⊙ M of the prunable tensors; as leaves, to differentiate with respect to them.

    They use the scratch memory of `weights` if the dtype allows, so only one view exists at a time.
    """
    if view.edges == 0:
        edges = {name: ones.to(dtype) for name, ones in weights.ones().items()}
    elif all(w.dtype == dtype for w in weights.values()):
        into = weights.scratch()
        apply = torch.abs if view.edges == 1 else torch.square
        edges = {name: apply(w, out=into[name]) for name, w in weights.items()}
    else:
        edges = {name: power(w.to(dtype), view.edges) for name, w in weights.items()}
    return {name: w.detach().requires_grad_() for name, w in edges.items()} if leaves else edges


def edge_shares(
    total: Tensor, edges: Mapping[str, Tensor], exponent: int = 0, keep_graph: bool = False
) -> tuple[dict[str, Tensor], int]:
    """w ⊙ ∂R/∂w: the part of R = total · 2^exponent that flows through each edge, and the rest of the exponent.

    Shares are non-negative, and zero for edges on no path. R takes as much of the exponent as its dtype holds.
    """
    size = abs(float(total.detach()))
    if exponent and 0.0 < size < math.inf:
        # R stays near 1: the backward pass divides it by activations and weights, which may be small
        room, top = 30 if total.dtype.itemsize <= 4 else 300, math.frexp(size)[1]
        folded = max(min(exponent, room - top), -room - top)
        # in steps, since 2^folded may be out of range although the product is not
        for step in [math.copysign(60, folded)] * (abs(folded) // 60) + [math.fmod(folded, 60)]:
            total = total * 2.0**step
        exponent -= folded
    found = torch.autograd.grad(total, list(edges.values()), allow_unused=True, retain_graph=keep_graph)
    parts = {n: torch.zeros_like(w) if d is None else d.mul_(w.detach()) for (n, w), d in zip(edges.items(), found)}
    return parts, exponent


@torch.no_grad()
def other_tensors(model: nn.Module, taken: Mapping[str, Tensor], view: View, dtype: torch.dtype) -> dict[str, Tensor]:
    """The rest of the model's state: other parameters are edges too, buffers are constants, statistics stay."""
    state: dict[str, Tensor] = {}
    for prefix, module in model.named_modules():
        statistics = isinstance(module, nn.modules.batchnorm._NormBase)
        start = f"{prefix}." if prefix else ""
        for local, p in module._parameters.items():
            if p is not None and start + local not in taken:
                state[start + local] = power(p.to(dtype), view.edges)
        for local, buffer in module._buffers.items():
            if buffer is None:
                continue
            if statistics:  # read by the rule, never updated
                state[start + local] = buffer.to(dtype) if buffer.is_floating_point() else buffer
            elif buffer.is_floating_point():
                state[start + local] = power(buffer.to(dtype), view.constants)
            else:
                state[start + local] = buffer.clone()
    return state
