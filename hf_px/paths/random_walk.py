"""Random walks along the paths of a network, P(i → o) ∝ |θ_oi|: forwards from the input, or back from the output.

Each row of a batch is one walker. Forwards, a walker is on one unit: before every layer one of the reachable units is
drawn. Backwards the same happens to the gradient. The gradient of a weight is then positive exactly where a walker
went through it. At a gate that the data computes a walker goes on through what is gated or through what steers the
gate, with equal chances, or it would never see a query or a key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batches import Batch
from .record_replay import Replay, replay
from .views import ABSOLUTE

Operation = Callable[[Tensor, Tensor], Tensor]


def draw(weights: Tensor, generator: torch.Generator) -> Tensor:
    """One unit per row, with probability ∝ weights, as one-hot rows; a row of zeros stays zero."""
    flat = weights.detach().flatten(1).double()
    mass = flat.cumsum(1)
    level = torch.rand(len(flat), 1, generator=generator, dtype=torch.float64).to(flat.device) * mass[:, -1:]
    unit = torch.searchsorted(mass, level, right=True).clamp_max(flat.shape[1] - 1)
    hot = torch.zeros_like(flat).scatter_(1, unit, 1.0) * (flat > 0)
    return hot.view(weights.shape).to(weights.dtype)


def coins(like: Tensor, generator: torch.Generator) -> Tensor:
    toss = (torch.rand(len(like), generator=generator) < 0.5).to(like.device, like.dtype)
    return toss.view(-1, *[1] * (like.dim() - 1))


class Walk(Replay):
    def freeze(self, func: Callable[..., Any], args: Any, kwargs: Any, saved: Any) -> Tensor:
        return self.follow(args[0].clone(), args[0])

    def attend(self, saved: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pairs = (*k.shape[:-2], q.shape[-2], k.shape[-2])
        steering = self.merge(q.sum(-1).unsqueeze(-1).expand(pairs), k.sum(-1).unsqueeze(-2).expand(pairs))
        return self.merge(torch.ones_like(steering) @ v, steering @ torch.ones_like(v))


class Forwards(Walk):
    generator: torch.Generator

    def one_unit(self, x: Tensor) -> Tensor:
        """Keep one unit per row, at size 1; the gradient passes through that unit alone."""
        size = x.detach()
        return x * draw(size, self.generator) / torch.where(size > 0, size, 1.0)

    def weigh(self, operation: Operation, x: Tensor, weight: Tensor) -> Tensor:
        # drawn again after the layer: pooling must not merge the positions that the walker could have taken
        return self.one_unit(operation(self.one_unit(x), weight))

    def merge(self, a: Tensor, b: Tensor) -> Tensor:
        if a.shape != b.shape:
            return a + b
        toss = coins(a, self.generator)
        toss = torch.where(_empty(a), 0.0, torch.where(_empty(b), 1.0, toss))  # a walker stays on its branch
        return a * toss + b * (1.0 - toss)


class Backwards(Walk):
    generator: torch.Generator

    def check_graph(self, output: Tensor) -> None: ...  # the custom autograd functions here are our own

    def weigh(self, operation: Operation, x: Tensor, weight: Tensor) -> Tensor:
        return _StepBack.apply(x, weight, operation, self.generator)

    def merge(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b if a.shape != b.shape else _Fork.apply(a, b, self.generator)


class _StepBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, operation: Operation, generator: torch.Generator) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.operation, ctx.generator = operation, generator
        return operation(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = (t.detach() for t in ctx.saved_tensors)
        above = draw(grads[0], ctx.generator)
        with torch.enable_grad():
            # only units that the input reaches, where a walk must end
            x_leaf = torch.ones_like(x).requires_grad_()
            (choices,) = torch.autograd.grad(ctx.operation(x_leaf, weight), x_leaf, above)
            below = draw(choices * (x > 0), ctx.generator)
            w_leaf = weight.requires_grad_()
            (used,) = torch.autograd.grad(ctx.operation(below, w_leaf), w_leaf, above)
        return below, used, None, None


class _Fork(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, generator: torch.Generator) -> Tensor:
        ctx.save_for_backward(a > 0, b > 0)
        ctx.generator = generator
        return a + b

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        a, b = ctx.saved_tensors
        above, toss = grads[0], coins(grads[0], ctx.generator)
        toss = torch.where(_empty(above * a), 0.0, torch.where(_empty(above * b), 1.0, toss))
        return above * toss * a, above * (1.0 - toss) * b, None


def _empty(x: Tensor) -> Tensor:
    """True for rows of zeros."""
    return (x.detach().flatten(1).amax(1) <= 0).view(-1, *[1] * (x.dim() - 1))


def walk(
    model: nn.Module, edges: dict[str, Tensor], batch: Batch, walkers: int, forwards: bool, generator: torch.Generator
) -> dict[str, Tensor]:
    """{name: True where a walker went}; `edges` are |θ| ⊙ M as leaves, `batch` gives the input's shape."""
    row = batch.row()
    dtype = next(iter(edges.values())).dtype
    x = torch.ones(walkers, *row.x.shape[1:], dtype=dtype, device=row.x.device)

    def mode(*args: Any) -> Replay:
        run = (Forwards if forwards else Backwards)(*args)
        run.generator = generator
        return run

    out = replay(model, edges, ABSOLUTE, row, draw(x, generator) if forwards else x, mode=mode).values
    goal = draw(out if forwards else (out > 0).to(out.dtype), generator)
    found = torch.autograd.grad((out * goal).sum(), list(edges.values()), allow_unused=True)
    return {n: torch.zeros_like(w, dtype=torch.bool) if g is None else g > 0 for (n, w), g in zip(edges.items(), found)}
