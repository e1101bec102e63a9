"""A view: every path p counts Π|θ|^edges · Π a^gates, so one number pair says which network is run.

    g of the paper   edges 0, gates 2    all parameters one, the recorded gates (for ReLU a² = a)
    h of the paper   edges 2, gates 0    squared parameters, every gate open
    SynFlow          edges 1, gates 0    absolute parameters, every gate open
    px-path          edges 2, gates 2    the square of every path of the network itself

Constants that are neither parameter nor gate (average pooling, resizing, x · 0.5) stay as they are in
g and h. That is sound: splitting a constant c as √c · √c between the two factors, Cauchy-Schwarz still
bounds the trace, and where c is the same on all paths the product g · h is the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..mask import MaskedWeights


@dataclass(frozen=True)
class View:
    edges: int
    gates: int

    @property
    def constants(self) -> int:
        return max(1, (self.edges + self.gates) // 2)


ONES = View(edges=0, gates=2)
SQUARED = View(edges=2, gates=0)
ABSOLUTE = View(edges=1, gates=0)
PATHS = View(edges=2, gates=2)


def power(values: Tensor, exponent: int) -> Tensor:
    """|values|^exponent without pow's rounding; exponent 0 gives ones, for 0 too."""
    if exponent == 0:
        return torch.ones_like(values)
    return values.abs() if exponent == 1 else values.square()


def edge_weights(weights: MaskedWeights, view: View, dtype: torch.dtype, leaves: bool = False) -> dict[str, Tensor]:
    """|θ|^edges ⊙ M of the prunable tensors; as leaves, to differentiate by."""
    if view.edges == 0:
        edges = {name: ones.detach().to(dtype) for name, ones in weights.ones.items()}
    else:
        edges = {name: power(w.detach().to(dtype), view.edges) for name, w in weights.items()}
    return {name: w.requires_grad_() for name, w in edges.items()} if leaves else edges


def shares(total: Tensor, edges: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """w ⊙ ∂R/∂w: the part of R that flows through each edge, non-negative, zero for edges on no path."""
    found = torch.autograd.grad(total, list(edges.values()), allow_unused=True)
    return {n: torch.zeros_like(w) if d is None else d.mul_(w.detach()) for (n, w), d in zip(edges.items(), found)}


@torch.no_grad()
def other_tensors(model: nn.Module, taken: Mapping[str, Tensor], view: View, dtype: torch.dtype) -> dict[str, Tensor]:
    """The rest of the model's state: parameters are edges too, buffers are constants, statistics stay."""
    statistics = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._NormBase)
        for name, _ in module.named_buffers(recurse=False)
    }
    state = {name: power(p.to(dtype), view.edges) for name, p in model.named_parameters() if name not in taken}
    for name, buffer in model.named_buffers():
        if not buffer.is_floating_point():
            state[name] = buffer.clone()
        elif name in statistics:
            state[name] = buffer.to(dtype)  # read by the rule, never updated
        else:
            state[name] = power(buffer.to(dtype), view.constants)
    return state
