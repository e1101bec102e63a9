"""Live weights: kept weights on a path from input to output, where ∂/∂M of the network of all-one edges is positive.

Here a path may also run through what steers a gate: a query weight matters, although scores hold the attention that it
computes fixed. So a frozen gate passes on 1 + x, and products of two paths are followed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batches import Batch
from ..core.forward import undisturbed
from ..core.mask import Mask
from .linear_ops import tensors
from .record_replay import Replay, replay
from .views import View, edge_shares, edge_weights

ANY_PATH = View(edges=0, gates=0)


class Structure(Replay):
    """Which weights are on a path: 1 where anything arrives, 0 elsewhere, since path counts would leave float64."""

    def rescale(self, x: Tensor) -> Tensor:
        if x not in self._traces:
            return x
        size = x.detach()
        return self.follow(x / torch.where(size > 0, size, 1.0), x)


class Reachability(Structure):
    """The same, with what steers a gate as part of a path."""

    def product(self, func: Callable[..., Any], args: Any, kwargs: Any, saved: Any = None) -> Any:
        """(1 + a)(1 + b) - 1: either factor may also hold constants, such as class tokens, that are not followed."""
        args = tuple(self.rescale(a) if isinstance(a, Tensor) else a for a in args)
        sources = [t for t in tensors(args, kwargs) if self.on_path(t)]
        raised = tuple(1.0 + a if isinstance(a, Tensor) else a for a in args)
        plain = tuple(torch.ones_like(a) if isinstance(a, Tensor) else a for a in args)
        return self.rescale(self.follow(func(*raised, **kwargs) - func(*plain, **kwargs), *sources))

    def freeze(self, func: Callable[..., Any], args: Any, kwargs: Any, saved: Any) -> Tensor:
        return self.follow(1.0 + self.rescale(args[0]), args[0])

    def attend(self, saved: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = q @ k.mT
        return (1.0 + logits) @ v / (1.0 + logits.detach().max())


def live_weights(model: nn.Module, mask: Mask, batch: Batch) -> dict[str, Tensor]:
    """{name: True where a kept weight lies on some path}; `batch` gives the input's shape."""
    row = batch.row()
    weights = mask.weights(model)
    edges = edge_weights(weights, ANY_PATH, torch.float64, leaves=True)
    with undisturbed(model):
        out = replay(model, edges, ANY_PATH, row, torch.ones_like(row.x, dtype=torch.float64), mode=Reachability)
    if not out.values.requires_grad:  # no kept weight is even used
        return {name: torch.zeros_like(bits) for name, bits in mask.bits.items()}
    return {name: share > 0 for name, share in edge_shares(out.values.sum(), edges)[0].items()}


class LostFactors(Reachability):
    """Names the modules that multiply by nothing: attention without queries or keys, a gated unit without a side."""

    lost: list[str]

    def _look(self, *factors: Tensor) -> None:
        if not all(bool(factor.any()) for factor in factors) and (place := self.where()) not in self.lost:
            self.lost.append(place)

    def product(self, func: Callable[..., Any], args: Any, kwargs: Any, saved: Any = None) -> Any:
        self._look(*tensors(args, kwargs))
        return super().product(func, args, kwargs, saved)

    def attend(self, saved: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._look(q, k, v)
        return super().attend(saved, q, k, v)


def lost_factors(model: nn.Module, mask: Mask, batch: Batch) -> list[str]:
    """Names of the modules that multiply by nothing under this mask; one tensor may hold all three of an attention.

    Queries that do not come from the image, as of a class token, are nothing in the dense network too, and no loss.
    """
    lost = _products_of_nothing(model, mask, batch)
    before = _products_of_nothing(model, Mask.ones(mask.bits), batch) if lost else []
    return [name for name in lost if name not in before]


@torch.no_grad()
def _products_of_nothing(model: nn.Module, mask: Mask, batch: Batch) -> list[str]:
    row, lost = batch.row(), list[str]()
    edges = edge_weights(mask.weights(model), ANY_PATH, torch.float64)

    def mode(*args: Any) -> Replay:
        run = LostFactors(*args)
        run.lost = lost
        return run

    with undisturbed(model):
        replay(model, edges, ANY_PATH, row, torch.ones_like(row.x, dtype=torch.float64), mode=mode)
    return lost
