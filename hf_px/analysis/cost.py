"""Multiply-adds, dense · live density = sparse, and what a forward pass takes on this machine.

torch's FlopCounterMode counts operations by shape. Each is booked on the parameter that is one of its operands, found
by memory and not by the module that runs: a tied weight, a module called twice and an attention's in_proj_weight, which
a function uses, all find their owner so. Where a layer makes its weight anew (weight standardisation), that layer's
own weight is charged. A product of two activations has no owner and counts in full.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from ..core.batches import Batch, Batches
from ..core.forward import call_with, input_shape, undisturbed
from ..core.mask import Mask
from ..core.prunable import prunable
from .live import live_bits, total

PRODUCTS = "products of two activations"
NO_FASTER = (
    "no difference within the spread; unstructured zeros do not make it faster here, since dense kernels multiply them "
    "like any number."
)


@dataclass(frozen=True)
class CostRow:
    name: str
    kept: int
    live: int | None  # kept and on a path; None: unknown
    total: int
    macs_dense: int
    macs_sparse: int


@dataclass(frozen=True)
class Cost:
    """Of one input through the network. `others`: multiply-adds of what was not pruned, which count in full."""

    rows: list[CostRow]
    others: dict[str, int]  # {parameter, or PRODUCTS: multiply-adds}
    parameters: int  # all of the model's, tied ones once
    input_size: tuple[int, ...]
    basis: Literal["live", "kept"]  # of the sparse count
    note: str = ""

    @property
    def prunable(self) -> int:
        return sum(row.total for row in self.rows)

    @property
    def kept(self) -> int:
        return sum(row.kept for row in self.rows)

    @property
    def live(self) -> int | None:
        return total(row.live for row in self.rows)

    @property
    def macs_dense(self) -> int:
        return sum(row.macs_dense for row in self.rows) + sum(self.others.values())

    @property
    def macs_sparse(self) -> int:
        return sum(row.macs_sparse for row in self.rows) + sum(self.others.values())

    def to_dict(self) -> dict[str, Any]:
        return {
            "layers": [asdict(row) for row in self.rows],
            "others": dict(self.others),
            "parameters": self.parameters,
            "prunable": self.prunable,
            "kept": self.kept,
            "live": self.live,
            "macs_dense": self.macs_dense,
            "macs_sparse": self.macs_sparse,
            "input_size": list(self.input_size),
            "basis": self.basis,
            "note": self.note,
        }


def cost(
    model: nn.Module,
    mask: Mask | None = None,
    *,
    input_size: Sequence[int] | None = None,
    batches: Iterable[Any] | None = None,
    live: Mapping[str, Tensor] | None = None,
) -> Cost:
    """What one input costs; without a mask, sparse is dense. `live` saves finding the live weights again."""
    batch = _one_input(model, input_size, batches)
    whole = mask is None
    mask = Mask.ones(prunable(model)) if mask is None else mask
    notes = []
    if not whole and live is None:
        found, why = live_bits(model, mask, None if batches is None else [batch], batch.x.shape[1:])
        live = found
        notes += [why] if why else []
    macs = multiply_adds(model, batch)
    rows = []
    for name, bits in mask.bits.items():
        kept, dense = int(bits.sum()), macs.pop(name, 0)
        alive = kept if whole else None if live is None else int(live[name].sum())
        sparse = round(dense * (kept if alive is None else alive) / bits.numel()) if bits.numel() else 0
        rows.append(CostRow(name, kept, alive, bits.numel(), dense, sparse))
    basis: Literal["live", "kept"] = "kept" if whole or live is None else "live"
    if idle := [row.name for row in rows if not row.macs_dense]:
        notes.append(
            f"no multiply-adds were counted for {_some(idle)}: unused, or used by what torch's counter does not know"
        )
    if not whole and macs:
        notes.append(f"counted in full, since no pruned tensor owns them: {_some(macs)}")
    parameters = sum(p.numel() for p in model.parameters())
    return Cost(rows, macs, parameters, tuple(batch.x.shape[1:]), basis, "; ".join(notes))


@torch.no_grad()
def multiply_adds(model: nn.Module, batch: Batch) -> dict[str, int]:
    """{parameter: multiply-adds that have it as an operand}, and those that have none under PRODUCTS."""
    args, kwargs = batch.call_args()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    devices = [batch.x.device] if batch.x.device.type == "cuda" else []
    fast = torch.backends.mha.get_fastpath_enabled()
    counter = FlopCounterMode(display=False)
    try:
        # the counter has no formula for the fused encoder layer; and fused attention is not in every version's list
        torch.backends.mha.set_fastpath_enabled(False)
        with (
            undisturbed(model), torch.random.fork_rng(devices), sdpa_kernel(SDPBackend.MATH),
            _running() as running, counter, _Owners(model, counter, running) as owners,
        ):  # fmt: skip
            call_with(model, buffers, args, kwargs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return {name: flops // 2 for name, flops in owners.flops.items()}


class _Owners(TorchDispatchMode):
    """Stands before the counter: what it counts during an operation belongs to the parameter among the operands."""

    def __init__(self, model: nn.Module, counter: FlopCounterMode, running: list[nn.Module]) -> None:
        super().__init__()
        self.flops: dict[str, int] = {}
        self._counter, self._running = counter, running
        # where each parameter lies in memory; several may be parts of one storage, so its start would not do
        self._places = [(p.data_ptr(), p.data_ptr() + p.nbytes, name) for name, p in model.named_parameters()]
        names = {id(p): name for name, p in model.named_parameters()}
        maps = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd)
        self._of_module = {
            id(m): names[id(m._parameters["weight"])]
            for m in model.modules()
            if isinstance(m, maps) and id(m._parameters.get("weight")) in names
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self._counter.get_total_flops()
        out = func(*args, **(kwargs or {}))
        if counted := self._counter.get_total_flops() - before:
            name = self._owner(args, kwargs)
            self.flops[name] = self.flops.get(name, 0) + counted
        return out

    def _owner(self, args: Any, kwargs: Any) -> str:
        for tensor in tree_leaves((args, kwargs)):
            # a bias is an operand too, of one dimension; it is added, not multiplied by
            if isinstance(tensor, Tensor) and tensor.dim() > 1 and (found := self._at(tensor.data_ptr())):
                return found
        return self._of_module.get(id(self._running[-1]), PRODUCTS) if self._running else PRODUCTS

    def _at(self, place: int) -> str | None:
        return next((name for start, end, name in self._places if start <= place < end), None)


@contextmanager
def _running() -> Iterator[list[nn.Module]]:
    """The modules whose forward pass is under way, innermost last."""
    stack: list[nn.Module] = []
    enter = register_module_forward_pre_hook(lambda module, args: stack.append(module))
    leave = register_module_forward_hook(lambda module, args, output: (stack.pop(), None)[1])
    try:
        yield stack
    finally:
        enter.remove()
        leave.remove()


def _one_input(model: nn.Module, input_size: Sequence[int] | None, batches: Iterable[Any] | None) -> Batch:
    first = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    if batches is not None:
        return Batches(batches, first.device, first.dtype).first().row()
    shape = input_shape(model) if input_size is None else tuple(input_size)
    if shape is None:
        raise ValueError(
            f"{type(model).__name__} does not tell its input size; pass input_size=(3, 224, 224) or batches"
        )
    return Batch(torch.ones(1, *shape, device=first.device, dtype=first.dtype))


def _some(names: Iterable[str], most: int = 4) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# on the clock


@dataclass(frozen=True)
class Latency:
    """Seconds of a forward pass: the median, and the quartiles as its spread."""

    median: float
    low: float
    high: float
    runs: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@torch.no_grad()
def latency(models: Mapping[str, nn.Module], x: Tensor, *, seconds: float = 2.0, least: int = 5) -> dict[str, Latency]:
    """Time each model on `x` in eval mode, in turns: what else the machine does meanwhile hurts all of them alike.

    About `seconds` for each, and at least `least` runs, after two that do not count.
    """
    if not models:
        raise ValueError("latency: no model to time; pass {'dense': model, …}")
    least = max(2, least)  # one run has no quartiles
    taken: dict[str, list[float]] = {name: [] for name in models}
    with _evaluating(models.values()), torch.random.fork_rng([x.device] if x.device.type == "cuda" else []):
        for model in [*models.values()] * 2:
            _timed(model, x)
        names, end = list(models), time.perf_counter() + seconds * len(models)
        while len(taken[names[-1]]) < least or time.perf_counter() < end:
            for name in names:
                taken[name].append(_timed(models[name], x))
            names.reverse()  # none always goes first
    return {name: _latency(times) for name, times in taken.items()}


def _timed(model: nn.Module, x: Tensor) -> float:
    _synchronize(x)
    start = time.perf_counter()
    model(x)
    _synchronize(x)
    return time.perf_counter() - start


def _synchronize(x: Tensor) -> None:
    if x.device.type != "cpu":
        torch.accelerator.synchronize(x.device)


def _latency(times: Sequence[float]) -> Latency:
    low, median, high = quantiles(times, n=4, method="inclusive")
    return Latency(median, low, high, len(times))


@contextmanager
def _evaluating(models: Iterable[nn.Module]) -> Iterator[None]:
    """Eval mode for all; not forward.undisturbed, which turns TF32 off: on the clock, as a user runs them."""
    flags = [(module, module.training) for model in models for module in model.modules()]
    try:
        for module, _ in flags:
            module.training = False
        yield
    finally:
        for module, training in flags:
            module.training = training


def faster(dense: Latency, sparse: Latency) -> bool | None:
    """True or False where the quartiles of the two do not overlap; None: no difference within the spread."""
    if sparse.high < dense.low:
        return True
    return False if sparse.low > dense.high else None


def verdict(dense: Latency, sparse: Latency) -> str:
    """One sentence on whether the zeros made it faster here."""
    times = f"Pruned {_ms(sparse)} against dense {_ms(dense)}"
    change = abs(sparse.median / dense.median - 1)
    if faster(dense, sparse):
        return (
            f"{times}: {change:.0%} faster here, beyond the spread; dense kernels multiply zeros like any number, so "
            "look for another cause before you count on it."
        )
    if faster(dense, sparse) is False:
        return f"{times}: {change:.0%} slower here; unstructured zeros do not make dense kernels faster."
    return f"{times}: {NO_FASTER}"


def _ms(found: Latency) -> str:
    return f"{1e3 * found.median:,.4g} ms ({1e3 * found.low:,.4g} to {1e3 * found.high:,.4g})"


def machine(device: torch.device | str = "cpu") -> str:
    """What a time was measured on: processor or GPU, threads, torch."""
    device = torch.device(device)
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} thread{'s' * (threads > 1)}, torch {torch.__version__}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, named), platform.processor() or platform.machine() or "an unnamed processor")
