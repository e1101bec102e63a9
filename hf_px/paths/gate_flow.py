"""The flow that passes each gate, shared out to the weights that steer it: S_j = Σ_i F_i · θ_j/u_i · ∂u_i/∂θ_j.

For SynFlow and its kin, which see no data: every gate is open. Gate i passes the flow F_i = ∂R/∂gate_i, and what would
compute it is replayed without its activation as u_i, for attention the sum of queries and keys. The weights on the way
to u_i get F_i in proportion to their paths in u_i. So the queries and keys of a block together score what its values
score, and a squeeze-and-excitation what its channels score. Flow that steers is not followed further back: weights on
a path keep their path score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batches import Batch
from .record_replay import Replay, replay
from .views import View, edge_shares


class OpenGates(Replay):
    """Replays with every gate open, and keeps each frozen gate beside what would compute it."""

    gates: list[tuple[Tensor, Tensor]]

    def freeze(self, func: Callable[..., Any], args: Any, kwargs: Any, saved: Any) -> Tensor:
        return self._gate(args[0].clone())  # what follows may write into x

    def attend(self, saved: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.on_path(q) and self.on_path(k):
            q, k = self.align([q, k])
        return self._gate(q.sum(-1).unsqueeze(-1) + k.sum(-1).unsqueeze(-2)) @ v

    def _gate(self, u: Tensor) -> Tensor:
        gate = torch.ones_like(u).requires_grad_()
        self.gates.append((gate, u))
        return gate.clone()  # what follows may write into it


def open_flow(model: nn.Module, edges: Mapping[str, Tensor], view: View, batch: Batch) -> tuple[dict[str, Tensor], int]:
    """θ ⊙ ∂R/∂θ, R = 1ᵀ f̃(1), of the edges on paths, and of the others their part in the gates, times 2^exponent."""
    gates: list[tuple[Tensor, Tensor]] = []

    def mode(*args: Any) -> Replay:
        run = OpenGates(*args)
        run.gates = gates
        return run

    out = replay(model, edges, view, batch, torch.ones_like(batch.x, dtype=torch.float64), mode=mode)
    leaves = {f"gate {i}": gate for i, (gate, _) in enumerate(gates)}
    shares, exponent = edge_shares(out.values.sum(), {**edges, **leaves}, out.exponent, keep_graph=bool(gates))
    flows = {name: shares.pop(name) for name in leaves}
    steered = [(flow, u) for flow, (_, u) in zip(flows.values(), gates) if u.requires_grad]
    if steered:
        log = [(flow * u / torch.where(u.detach() > 0, u.detach(), 1.0)).sum() for flow, u in steered]
        found, _ = edge_shares(torch.stack(log).sum(), edges)
        shares = {name: torch.where(share == 0, found[name], share) for name, share in shares.items()}
    return shares, exponent
