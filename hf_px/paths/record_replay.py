"""Record a network's gates on a real forward pass, then replay them: the network is linear in its input.

Both are TorchFunctionModes: they see every operation on tensors, functional or in a module, without changing the model.
Record keeps what the rules need. Replay runs the same Python code on a view of the parameters and follows the tensors
on a path from the input: each is `values · 2^exponent` and linear in the input. Path sums of deep networks leave every
float range; the exponent keeps them inside, exactly.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.batches import Batch
from ..core.errors import UnsupportedModelError
from ..core.forward import call, call_with, output_tensor
from . import linear_ops
from .activations import FrozenGate, Gate, Kept
from .base import Norm, in_place, operation, positional
from .normalisation import Normalisation, Statistic
from .products import PRODUCTS, Gates, Product, both_ways
from .rules import RULES
from .traces import Entry, Flow, Trace, Traces
from .views import View, other_tensors, power

# Layers between two looks at the size of g's values. Its weights are 0 or 1, so a layer of n inputs multiplies values
# by at most n: from 2^60 three layers of 2^20 inputs stay in float32's range. Looking at each took 2 % of a round.
MEASURE_EVERY = 3


class Record(TorchFunctionMode):
    def __init__(self, norm: Norm, copy: bool) -> None:
        super().__init__()
        self.norm, self.copy = norm, copy
        self.entries: list[Entry] = []
        self.moving = Traces()  # tensors that depend on the input and are not frozen gates: their products are recorded

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operation(func)
        rule, given = RULES.get(name), linear_ops.tensors(args, kwargs or {})
        moving = [t for t in given if t in self.moving]
        if rule is None:
            output = func(*args, **(kwargs or {}))
        else:
            args, kwargs = positional(args, kwargs)
            skip = isinstance(rule, Product) and not len(moving) == len(given) == 2
            output, saved = (func(*args, **kwargs), None) if skip else rule.record(func, args, kwargs, self.norm)
            if self.copy and isinstance(saved, (Kept, Gates)):
                saved = saved.copy()
            self.entries.append(Entry(name, saved))
        if moving and not isinstance(rule, (FrozenGate, Statistic)):
            written = args[:1] if in_place(func, args, kwargs or {}) or name == "__setitem__" else ()
            for tensor in linear_ops.tensors((output, *written), {}):
                self.moving[tensor] = Trace()
        return output


def record(model: nn.Module, weights: Mapping[str, Tensor], batch: Batch, norm: Norm) -> tuple[Tensor, list[Entry]]:
    """f(x; θ ⊙ M) and its gates; batch norm with the statistics of this batch or the stored ones."""
    for copy in (False, True):  # again with copies for the rare model that writes into the output of an activation
        mode = Record(norm, copy)
        mode.moving[batch.x] = Trace()
        with torch.no_grad(), mode:
            output = call(model, weights, batch)
        if all(entry.saved.intact for entry in mode.entries if isinstance(entry.saved, (Kept, Gates))):
            break
    return output, mode.entries


def replay(
    model: nn.Module,
    edges: Mapping[str, Tensor],
    view: View,
    batch: Batch,
    x: Tensor,
    tape: list[Entry] | None = None,
    mode: Callable[..., Replay] | None = None,
) -> Flow:
    """Run the network as the sum of its paths on x, in the dtype of x; `edges` are the view's prunable tensors."""
    state = {**other_tensors(model, edges, view, x.dtype), **edges}
    run = (mode or Replay)(model, view, tape)
    run.start(x)
    args, kwargs = batch.call_args(x)
    with run:
        output = output_tensor(call_with(model, state, args, kwargs))
    return run.finish(output)


class ungated(TorchFunctionMode):
    """The real network without its element-wise activations."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(RULES.get(operation(func)), Gate):
            return args[0]
        return func(*args, **(kwargs or {}))


class Replay(TorchFunctionMode):
    """Runs a view. Subclasses change what happens where paths fan out, join or are rescaled."""

    def __init__(self, model: nn.Module, view: View, tape: list[Entry] | None) -> None:
        super().__init__()
        self.model = model
        self.view = view
        self._tape = tape
        self._next = 0
        self._traces = Traces()

    # Tensors on a path

    def start(self, x: Tensor) -> None:
        self._traces[x] = Trace(twin=weakref.ref(x))  # the caller's tensor is never written to

    def finish(self, output: Tensor) -> Flow:
        trace = self._traces.get(output)
        if trace is None:
            raise UnsupportedModelError(
                f"{type(self.model).__name__}: no path that can be followed leads from its input to its output"
            )
        if trace.fault:
            raise UnsupportedModelError(trace.fault)
        if self._tape is not None and self._next != len(self._tape):
            raise UnsupportedModelError(
                f"{type(self.model).__name__} took another path through its code on replay "
                f"({self._next} of {len(self._tape)} recorded operations); does its forward depend on the data?"
            )
        self.check_graph(output)
        return Flow(output, trace.exponent)

    def check_graph(self, output: Tensor) -> None:
        """Refuse custom autograd functions: their backward need not be that of the paths."""
        waiting, seen = [output.grad_fn], set()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if (
                isinstance(node, torch.autograd.function.BackwardCFunction)
                and node._forward_cls is not linear_ops.FewRows
            ):
                name = type(node).__name__.removesuffix("Backward")
                raise UnsupportedModelError(
                    f"{type(self.model).__name__} calls the custom autograd function {name}, whose gradient cannot be "
                    "followed; use a scorer that needs no paths (magnitude, snip)"
                )
            waiting.extend(n for n, _ in node.next_functions)

    def on_path(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and tensor in self._traces

    def follow(self, output: Tensor, *sources: Tensor) -> Tensor:
        """Mark `output` as on the paths of `sources`, which share one exponent."""
        traces = [self._traces[s] for s in sources if s in self._traces]
        if traces:
            fault = next((t.fault for t in traces if t.fault), None)
            self._traces[output] = Trace(traces[0].exponent, fault, max(t.unmeasured for t in traces))
        return output

    def follow_unscaled(self, output: Tensor, source: Tensor) -> Tensor:
        """Like `follow`, for an output that does not depend on the scale of its source."""
        self.follow(output, source)
        self._traces[output].exponent = 0
        return output

    def off_path(self, tensor: Tensor) -> Tensor:
        self._traces.discard(tensor)
        return tensor

    def alias(self, x: Tensor) -> Tensor:
        """A second tensor with the memory of x; copied only if one of the two is changed in place."""
        if x not in self._traces:
            return x
        if torch.is_grad_enabled():
            return self.follow(x.clone(), x)  # cheap for one row, and safe with autograd
        other = self.follow(x.data, x)  # a plain view would keep x alive as its base
        self._traces[x].twin, self._traces[other].twin = weakref.ref(other), weakref.ref(x)
        return other

    def borrowed(self, x: Tensor) -> bool:
        twin = self._traces[x].twin if x in self._traces else None
        return twin is not None and twin() is not None

    def own(self, x: Tensor) -> Tensor:
        """x with its own memory, to be changed in place."""
        if self.borrowed(x):
            x.data = x.data.clone()
            self._traces[x].twin = None
        return x

    def rescale(self, x: Tensor) -> Tensor:
        """Move a power of two into the exponent if values have grown or shrunk too far; no digit changes."""
        trace = self._traces.get(x)
        if trace is None or not x.numel():
            return x
        trace.unmeasured += 1
        if self.view.edges == 0 and trace.unmeasured < MEASURE_EVERY:
            return x
        trace.unmeasured = 0
        peak = float(x.detach().amax())  # paths are non-negative
        if not 0.0 < peak < math.inf:
            return x
        shift = math.frexp(peak)[1]
        if abs(shift) < (60 if x.dtype.itemsize <= 4 else 500):  # room for the next layer's fan-in
            return x
        trace.exponent += shift
        factor = math.ldexp(1.0, -shift)
        if torch.is_grad_enabled() and x.requires_grad:
            moved = x * factor
            self._traces[moved] = trace
            return moved
        return self.own(x).mul_(factor)

    def align(self, tensors: list[Tensor]) -> list[Tensor]:
        """The same tensors with the largest exponent of them; what is lost was below precision."""
        traces = [self._traces[t] for t in tensors]
        top = max(trace.exponent for trace in traces)
        aligned = []
        for tensor, trace in zip(tensors, traces):
            if trace.exponent != top:
                tensor = tensor * math.ldexp(1.0, max(trace.exponent - top, -1000))
                self._traces[tensor] = Trace(top, trace.fault, trace.unmeasured)
            aligned.append(tensor)
        return aligned

    def align_into(self, x: Tensor, value: Tensor) -> Tensor:
        """`value` with the exponent of x, to be written into x; a smaller exponent of x is raised in place."""
        raised, value = self.align([self.own(x), value])
        trace = self._traces[x]
        if raised is not x:
            x.copy_(raised)
            trace.exponent = self._traces[raised].exponent
        trace.fault = trace.fault or self._traces[value].fault
        trace.unmeasured = max(trace.unmeasured, self._traces[value].unmeasured)
        return value

    def overwrite(self, x: Tensor, y: Tensor) -> Tensor:
        """x with the values of y, for an operation that writes into x."""
        x = self.own(x).copy_(y)
        self._traces[x] = self._traces[y]
        return x

    def match(self, recorded: Tensor, x: Tensor) -> Tensor:
        """A tensor recorded on the whole batch for use on one row: the mean over samples, along whatever axis."""
        for axis in range(-min(recorded.dim(), x.dim()), 0):
            n, row = recorded.shape[axis], x.shape[axis]
            if n not in (1, row):
                if n % row:
                    raise UnsupportedModelError(f"recorded {tuple(recorded.shape)} does not fit {tuple(x.shape)}")
                recorded = recorded.unflatten(axis, (n // row, row)).mean(axis - 1)
        return recorded

    # Operations

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = positional(args, kwargs)
        name = operation(func)
        rule = RULES.get(name)
        if rule is not None:
            return rule.replay(self, self._take(name), func, args, kwargs)
        return self.linear(name, func, args, kwargs)

    def linear(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """An operation without a rule: linear in the tensors on a path, or a fault."""
        paths = [t for t in linear_ops.tensors(args, kwargs) if t in self._traces]
        if not paths:
            return func(*linear_ops.one_dtype(name, args), **kwargs)
        handler = linear_ops.HANDLERS.get(name)
        if handler is not None:
            return handler(self, name, func, args, kwargs)
        return self.nonlinear(func, args, kwargs)

    def _take(self, name: str) -> Any:
        if self._tape is None:
            return None
        if self._next >= len(self._tape) or self._tape[self._next].operation != name:
            raise UnsupportedModelError(
                f"{self.where()}: {name} was not recorded at this place; does the model's forward depend on the data?"
            )
        self._next += 1
        return self._tape[self._next - 1].saved

    def nonlinear(
        self, func: Callable[..., Any], args: Any, kwargs: Any, what: str = "is not linear and has no rule"
    ) -> Any:
        """Run it and remember the fault: an error if it reaches the output, harmless if a frozen gate absorbs it."""
        name, output = operation(func), func(*args, **kwargs)
        found = linear_ops.tensors((output,), {})
        if in_place(func, args, kwargs) and isinstance(args[0], Tensor):
            found.append(args[0])
        if not found and name not in linear_ops.READS_VALUES:
            return output  # a shape or a dtype
        sources = [t for t in linear_ops.tensors(args, kwargs) if t in self._traces]
        fault = next((self._traces[t].fault for t in sources if self._traces[t].fault), None) or (
            f"{self.where()}: the operation {name} {what}, so this model cannot be run as its paths; "
            "use a scorer that needs no paths (magnitude, snip, grasp), or add a rule in hf_px/paths/rules.py"
        )
        if not found:
            raise UnsupportedModelError(fault)
        for tensor in found:
            self._traces[tensor] = Trace(fault=fault)
        return output

    def weigh(self, operation: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
        """y = W x, where paths fan out."""
        return operation(x, weight)

    def merge(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b, where paths join."""
        return a + b

    def product(self, func: Callable[..., Any], args: Any, kwargs: Any, saved: Gates | None = None) -> Any:
        """A product of two tensors on paths: of each at the gate of the other, if these were recorded or are open."""
        if saved is None and (operation(func) not in PRODUCTS or (self._tape is not None and self.view.gates)):
            return self.nonlinear(func, args, kwargs, "multiplies two tensors that depend on the input")
        return both_ways(self, func, args, kwargs, saved)

    def freeze(self, func: Callable[..., Any], args: Any, kwargs: Any, saved: Any) -> Tensor:
        """A gate computed from the data, as recorded or open; no path runs through it."""
        x = args[0]
        return torch.ones_like(x) if self.view.gates == 0 else power(saved, self.view.gates).to(x.dtype)

    def attend(self, saved: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """attention · v, with the recorded attention, or with every token open to every query."""
        if self.view.gates == 0:
            total = v.sum(-2, keepdim=True)
            heads = torch.broadcast_shapes(q.shape[:-2], total.shape[:-2])  # all heads may share the values of one
            return total.expand(*heads, q.shape[-2], total.shape[-1])
        return power(saved[..., : v.shape[-2]], self.view.gates).to(v.dtype) @ v

    def where(self) -> str:
        """Name of the module whose code is running, from the Python stack; only for errors."""
        names = {id(module): name for name, module in self.model.named_modules()}
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module) and id(module) in names:
                return f"{names[id(module)] or 'the model itself'} ({type(module).__name__})"
            frame = frame.f_back
        return type(self.model).__name__


class LastReplay(Replay):
    """Gives up each gate after its use, so that the next layers take over its memory; normalisation stays on the tape.

    Fresh memory for them, beside all gates, cost a round of px on a ResNet-50 20,000 page faults.
    """

    def _take(self, name: str) -> Any:
        saved = super()._take(name)
        if self._tape is not None and not isinstance(RULES[name], (Normalisation, Statistic)):
            self._tape[self._next - 1] = Entry(name, None)
        return saved
