"""Multiply-adds of one input: sparse = dense · live density, layer by layer.

torch's FlopCounterMode counts operations by shape. Each operation is attributed to the parameter among its operands,
which is found by its memory address and not by the running module: this covers tied weights, modules that are called
twice and in_proj_weight of attention, which a function uses. If a layer computes its weight (weight standardisation),
the operation counts for that layer's own weight. A product of two activations belongs to no parameter and counts in
full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from ..core.text import name_list
from .layer_counts import LayerTable, count_layers, live_bits

PRODUCTS = "products of two activations"


@dataclass(frozen=True)
class CostRow:
    name: str
    kept: int
    live: int | None  # kept and on a path; None: unknown
    total: int
    macs_dense: int
    macs_sparse: int


@dataclass(frozen=True)
class Cost(LayerTable):
    """Multiply-adds of one input. Those of `others`, which were not pruned, count in full."""

    rows: list[CostRow]
    others: dict[str, int]  # {parameter, or PRODUCTS: multiply-adds}
    parameters: int  # all of the model's, tied ones once
    input_size: tuple[int, ...]
    basis: Literal["live", "kept"]  # which weights the sparse count counts
    note: str = ""

    @property
    def macs_dense(self) -> int:
        return sum(row.macs_dense for row in self.rows) + sum(self.others.values())

    @property
    def macs_sparse(self) -> int:
        return sum(row.macs_sparse for row in self.rows) + sum(self.others.values())


def cost(
    model: nn.Module,
    mask: Mask | None = None,
    *,
    input_size: Sequence[int] | None = None,
    batches: Iterable[Any] | None = None,
    live: Mapping[str, Tensor] | None = None,
) -> Cost:
    """Multiply-adds and weights by layer, dense and sparse; without a mask both are the same.

    `live` is what live_bits returned, if that is known.
    """
    batch = _one_input(model, input_size, batches)
    dense = mask is None
    mask = Mask.ones(prunable(model)) if mask is None else mask
    notes = []
    if not dense and live is None:
        live, why = live_bits(model, mask, None if batches is None else [batch], batch.x.shape[1:])
        notes += [why] if why else []
    macs = multiply_adds(model, batch)
    rows = []
    for layer in count_layers(model, mask, mask.bits if dense else live):
        macs_dense, weights = macs.pop(layer.name, 0), layer.kept if layer.live is None else layer.live
        macs_sparse = round(macs_dense * weights / layer.total) if layer.total else 0
        rows.append(CostRow(layer.name, layer.kept, layer.live, layer.total, macs_dense, macs_sparse))
    basis: Literal["live", "kept"] = "kept" if dense or live is None else "live"
    if idle := [row.name for row in rows if not row.macs_dense]:
        notes.append(
            f"no multiply-adds were counted for {name_list(idle)}: unused, or used by an operation that torch's "
            "counter does not know"
        )
    if not dense and macs:
        notes.append(f"counted in full, because they use no pruned tensor: {name_list(macs)}")
    parameters = sum(p.numel() for p in model.parameters())
    return Cost(rows, macs, parameters, tuple(batch.x.shape[1:]), basis, "; ".join(notes))


@torch.no_grad()
def multiply_adds(model: nn.Module, batch: Batch) -> dict[str, int]:
    """{parameter: multiply-adds with it as an operand}; those without a parameter are under PRODUCTS."""
    args, kwargs = batch.call_args()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    devices = [batch.x.device] if batch.x.device.type == "cuda" else []
    fast = torch.backends.mha.get_fastpath_enabled()
    counter = FlopCounterMode(display=False)
    try:
        # the counter has no formula for the fused encoder layer, and in some versions none for fused attention
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
    """Attributes what the counter counts during an operation to the parameter among the operands."""

    def __init__(self, model: nn.Module, counter: FlopCounterMode, running: list[nn.Module]) -> None:
        super().__init__()
        self.flops: dict[str, int] = {}
        self._counter, self._running = counter, running
        # the memory range of each parameter; several may share a storage, so its start does not identify one
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
            # a bias is an operand too, but it is added, not multiplied; it has one dimension
            if isinstance(tensor, Tensor) and tensor.dim() > 1 and (found := self._at(tensor.data_ptr())):
                return found
        return self._of_module.get(id(self._running[-1]), PRODUCTS) if self._running else PRODUCTS

    def _at(self, place: int) -> str | None:
        return next((name for start, end, name in self._places if start <= place < end), None)


@contextmanager
def _running() -> Iterator[list[nn.Module]]:
    """A stack of the modules that are running, innermost last."""
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
            f"{type(model).__name__} declares no input size; pass `input_size`, such as (3, 224, 224), or `batches`"
        )
    return Batch(torch.ones(1, *shape, device=first.device, dtype=first.dtype))
