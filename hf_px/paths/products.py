"""The rule of products y = a · b of two activations: ỹ = ã · b² + b̃ · a², each factor a recorded gate of the other.

∂y = b ∂a + a ∂b, so squared paths run through a at the gate b, and through b at the gate a, and their shares are added.
With every gate open ỹ = ã + b̃. A quotient y = a / b is a at the gate 1/b, and b at the gate y/b. x · x is the
activation x² (activations.py), whose gate is x once.

Gated linear units, gMLP, MambaOut, StarNet and linear attention are such products. A sigmoid, a softmax or a scale
computed by hand is a frozen gate instead: no path runs through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .activations import Gate, Kept
from .base import Args, Func, Kwargs, Norm, Rule, in_place, operation
from .linear_ops import HANDLERS, tensors
from .views import power

if TYPE_CHECKING:
    from .record_replay import Replay

ELEMENTWISE = ("mul", "multiply", "__mul__", "__rmul__", "__imul__")
QUOTIENTS = ("div", "divide", "true_divide", "__truediv__", "__itruediv__", "__div__")
MATRICES = ("matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "einsum")
SQUARE = Gate(0.0)


@dataclass(frozen=True)
class Gates:
    """What is recorded of a product: the gate of the first factor and the gate of the second."""

    first: Kept
    second: Kept

    @property
    def intact(self) -> bool:
        return self.first.intact and self.second.intact

    def copy(self) -> Gates:
        return Gates(self.first.copy(), self.second.copy())


@dataclass(frozen=True)
class Product(Rule):
    def record(self, func: Func, args: Args, kwargs: Kwargs, norm: Norm) -> Any:
        """Of a product of two activations only; Record skips all others."""
        name, (a, b) = operation(func), tensors(args, kwargs)
        if a is b and name in ELEMENTWISE:
            return SQUARE.record(func, args, kwargs, norm)
        a = a.clone() if in_place(func, args, kwargs) or name.startswith("__i") else a
        y = func(*args, **kwargs)
        gates = (b.reciprocal(), y / b) if name in QUOTIENTS else (b, a)
        return y, Gates(*(Kept(gate, gate._version) for gate in gates))

    def replay(self, run: Replay, saved: Any, func: Func, args: Args, kwargs: Kwargs) -> Any:
        name, paths = operation(func), [t for t in tensors(args, kwargs) if run.on_path(t)]
        if len(paths) == 2 and paths[0] is paths[1] and name in ELEMENTWISE:
            return SQUARE.replay(run, saved, func, args, kwargs)
        if len(paths) == 2:
            return run.product(func, args, kwargs, saved)
        return run.linear(name, func, args, kwargs)


def both_ways(run: Replay, func: Func, args: Args, kwargs: Kwargs, saved: Gates | None) -> Tensor:
    """ã · b² + b̃ · a², or ã + b̃ if every gate is open."""
    name, (a, b) = operation(func), tensors(args, kwargs)
    open_, gates = run.view.gates == 0, run.view.gates
    first = torch.ones_like(b) if open_ or saved is None else power(saved.first.y, gates).to(a.dtype)
    second = torch.ones_like(a) if open_ or saved is None else power(saved.second.y, gates).to(b.dtype)
    multiply = torch.mul if name in (*ELEMENTWISE, *QUOTIENTS) else func

    def times(x: Tensor, y: Tensor) -> Tensor:
        return multiply(*((args[0], x, y) if name == "einsum" else (x, y)), **({} if multiply is torch.mul else kwargs))

    terms = run.align([run.follow(times(a, first), a), run.follow(times(second, b), b)])
    y = run.rescale(run.follow(run.merge(*terms), *terms))
    return run.overwrite(a, y) if in_place(func, args, kwargs) else y


PRODUCTS: dict[str, Rule] = dict.fromkeys((*ELEMENTWISE, *QUOTIENTS, *MATRICES), Product())
assert PRODUCTS.keys() <= HANDLERS.keys()
