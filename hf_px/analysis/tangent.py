"""J = ∂f(X; θ ⊙ M) / ∂θ ⊙ M, with N·K rows and one column per remaining parameter: its columns, J u and Jᵀ v.

f is evaluated image by image, with the statistics of BatchNorm as constants: measured on X through this network
(norm="batch", as training sees them at its first step) or the stored ones ("running").
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import jacrev, jvp, vjp, vmap

from ..core.batches import Batch, Batches
from ..core.errors import UnsupportedModelError
from ..core.forward import batch_statistics, call, twice_differentiable, undisturbed
from ..core.mask import Mask
from ..core.prunable import prunable

NormStatistics = Literal["batch", "running"]
Over = Literal["all", "weights"]
Vector = Mapping[str, Tensor]
_CHUNK = 64 * 2**20  # bytes of derivatives at a time; on ResNet-20 larger chunks are not faster


class Tangent:
    """A network linearised at θ ⊙ M. `values` replace the model's own parameters, by name."""

    def __init__(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        mask: Mask | None = None,
        *,
        values: Mapping[str, Tensor] | None = None,
        norm: NormStatistics = "batch",
        over: Over = "all",
        memory: int = 2**31,
    ) -> None:
        mask = Mask.ones(prunable(model)) if mask is None else mask
        mask.tensors_of(model)  # raises if the mask does not fit
        for prefix, module in model.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
                raise UnsupportedModelError(
                    f"{prefix}: has no running statistics, so the output for an image depends on the others; "
                    "build the model with track_running_stats=True"
                )
        own = {name: p.detach() for name, p in model.named_parameters() if p.is_floating_point()}
        own = {name: p.float() if p.dtype.itemsize < 4 else p for name, p in own.items()}
        frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
        own |= {name: value for name, value in (values or {}).items() if name in own}
        own = {name: p * mask.bits[name].to(p) if name in mask.bits else p for name, p in own.items()}
        free = [name for name in own if name in mask.bits or (over == "all" and name not in frozen)]
        if not free:
            raise ValueError("no parameter of the model is prunable or trainable, so its tangent kernel is empty")
        self.model, self.memory = model, memory
        self._graph: int | None = None  # bytes of the graph of one image, once measured
        self.free = {name: own[name] for name in free}
        self.device = next(iter(self.free.values())).device
        self.batch = _all_of(batches, self.device, next(iter(self.free.values())).dtype)
        self.fixed = {name: p for name, p in own.items() if name not in self.free}
        if norm == "batch":
            self.fixed |= batch_statistics(model, own, self.batch)
        self.kept = {
            name: mask.bits[name].to(self.device).flatten().nonzero().flatten() if name in mask.bits else None
            for name in self.free
        }
        with undisturbed(model), torch.no_grad():
            self.outputs = self._images(self.free, self.batch.x[:1]).numel()

    @property
    def rows(self) -> int:
        return len(self.batch.x) * self.outputs

    @property
    def columns(self) -> int:
        return sum(self._count(name) for name in self.free)

    def _count(self, name: str) -> int:
        kept = self.kept[name]
        return self.free[name].numel() if kept is None else len(kept)

    def _images(self, free: Vector, x: Tensor) -> Tensor:
        return call(self.model, {**self.fixed, **free}, self.batch.row(), x).flatten()

    def block(self, start: int, stop: int, tick: Callable[[int], Any] = lambda n: None) -> Tensor:
        """Columns `start` to `stop` of J, computed by torch.func in chunks of images."""
        parts: list[tuple[str, Tensor]] = []  # tensors that these columns belong to, and which of their entries
        first = 0
        for name, p in self.free.items():
            count = self._count(name)
            low, high = max(start - first, 0), min(stop - first, count)
            if low < high:
                kept = self.kept[name]
                parts.append((name, torch.arange(low, high, device=p.device) if kept is None else kept[low:high]))
            first += count
        some = {name: self.free[name] for name, _ in parts}
        rest = {name: p for name, p in self.free.items() if name not in some}
        size = sum(p.numel() for p in some.values()) * 4
        chunk = max(1, _CHUNK // (size * self.outputs))
        # outputs at a time, if those of one image are too many
        at_once = max(1, min(self.outputs, self.memory // 8 // size))

        def image(free: Vector, x: Tensor) -> Tensor:
            return self._images({**rest, **free}, x[None])

        jacobian = vmap(jacrev(image, chunk_size=at_once), in_dims=(None, 0))
        found = torch.empty(self.rows, stop - start, dtype=self.batch.x.dtype, device=self.device)
        row = 0
        with self._ready():
            for x in self.batch.x.split(chunk):
                derivatives = jacobian(some, x)
                column, height = 0, len(x) * self.outputs
                for name, entries in parts:
                    flat = derivatives[name].reshape(height, -1)
                    torch.index_select(flat, 1, entries, out=found[row : row + height, column : column + len(entries)])
                    column += len(entries)
                row += height
                tick(len(x))
        return found

    def vjp(self, v: Tensor) -> dict[str, Tensor]:
        """Jᵀ v by parameter name; pruned entries are 0."""
        total = {name: torch.zeros_like(p) for name, p in self.free.items()}
        chunk = self._at_once()
        parts = v.to(self.batch.x).split(chunk * self.outputs)
        with self._ready():
            for x, part in zip(self.batch.x.split(chunk), parts):
                pull = vjp(lambda free, x=x: self._images(free, x), self.free)[1]
                for name, g in pull(part)[0].items():
                    total[name] += g
        return {name: self._masked(name, g) for name, g in total.items()}

    def jvp(self, u: Vector) -> Tensor:
        """J u, the derivative in direction u."""
        found = []
        u = {name: self._masked(name, u[name]) for name in self.free}
        with self._ready(), torch.no_grad():
            for x in self.batch.x.split(self._at_once()):
                found.append(jvp(lambda free, x=x: self._images(free, x), (self.free,), (u,))[1])
        return torch.cat(found)

    def _masked(self, name: str, g: Tensor) -> Tensor:
        kept = self.kept[name]
        if kept is None:
            return g
        flat = torch.zeros_like(g).flatten()
        flat[kept] = g.flatten()[kept]
        return flat.view_as(g)

    def _at_once(self) -> int:
        """Number of images whose graphs fit in memory, measured on one image."""
        if self._graph is None:
            saved: dict[int, int] = {}

            def note(t: Tensor) -> Tensor:
                saved[t.data_ptr()] = t.numel() * t.element_size()
                return t

            leaves = {name: p.clone().requires_grad_() for name, p in self.free.items()}
            with self._ready(), torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
                self._images(leaves, self.batch.x[:1])
            self._graph = max(1, sum(saved.values()))
        return max(1, min(len(self.batch.x), self.memory // 2 // self._graph))

    @contextmanager
    def _ready(self) -> Iterator[None]:
        with undisturbed(self.model), twice_differentiable(), warnings.catch_warnings():
            # torch warns at its first jvp, and of operations that vmap runs one by one; we can avoid neither
            warnings.filterwarnings("ignore", "`torch.jit", FutureWarning)
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            yield


def _all_of(batches: Iterable[Any], device: torch.device, dtype: torch.dtype) -> Batch:
    """All images as one batch, because the kernel compares each image with every other."""
    found = list(Batches(batches, device, dtype))
    if not found:
        raise ValueError("`batches` is empty; pass at least one batch of inputs")
    if len({batch.x.shape[1:] for batch in found}) > 1:
        raise ValueError("`batches` has images of different sizes; a kernel needs one size")
    return replace(found[0], x=torch.cat([batch.x for batch in found]), labels=None)
