"""Program: a graph with its weights, compiled for one image size. Sparse layers run natively, all else in torch.

A value lies in planes (layout.py) if a native step made it, else it is a torch tensor; it is converted when an
operation needs the other form. Planes lie in an arena, one for each call at a time. Buffers of one layout are reused
when their value is no longer needed, so that they stay in the caches and their borders stay zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .geometry import Geometry, stride_of
from .graph import Graph, Layer, Op, Pool, Ref, TorchOp, reads
from .kernel_text import FIELDS, LANES, Kernel
from .kernels import address, gather_address, runner
from .layout import END, Layout
from .weights import PAIR, SparseWeight, folded_norm

Values = dict[str, Any]  # torch tensors by name
TorchStage = Callable[[Values, Tensor], None]  # (values, arena)
Together = Callable[[int, int, int], None]  # (address of the first step, number of steps, address of the arena)


@dataclass(frozen=True)
class Buffer:
    offset: int  # of its first float in the arena
    layout: Layout
    channels: int

    @property
    def first(self) -> int:
        """Offset of the first pixel of the first plane."""
        return self.offset + self.layout.start

    def images(self, arena: Tensor) -> Tensor:
        """The pixels as (1, C, H, W), without a copy."""
        layout = self.layout
        shape = (1, self.channels, layout.height, layout.width)
        return arena.as_strided(shape, (0, layout.pitch, layout.row, 1), self.first)

    def tokens(self, arena: Tensor) -> Tensor:
        """The tokens as (N, C), without a copy."""
        return arena.as_strided((self.layout.width, self.channels), (1, self.layout.pitch), self.first)

    def flat(self, arena: Tensor) -> Tensor:
        """All planes with their borders."""
        return arena[self.offset : self.offset + self.channels * self.layout.pitch]


@dataclass(frozen=True)
class Step:
    """A native step: its fields, and the work of each of its rows, by which threads share them."""

    label: str
    fields: tuple[int, ...]
    work: np.ndarray


class Program:
    """`choices` has the vectors in a tile of each sparse layer, or 0 for a layer that runs dense, in torch."""

    def __init__(
        self,
        graph: Graph,
        geometry: Geometry,
        tensors: Mapping[str, Tensor],
        weights: Mapping[str, SparseWeight],
        choices: Mapping[str, int],
    ) -> None:
        self.graph, self.geometry, self.choices = graph, geometry, choices
        self._tensors, self._weights = tensors, weights
        self.counts = {name: (weight.kept, weight.total) for name, weight in weights.items()}
        self.arena_size = END
        self.steps: list[Step] = []
        self.stages: list[tuple[str, range | TorchStage]] = []
        self._buffers: dict[str, Buffer] = {}
        self._free: dict[Layout, list[Buffer]] = {}
        self._owners: dict[int, Buffer] = {}  # {offset: the buffer as it was allocated}
        self._in_torch = set(graph.inputs)
        self._arrays: list[np.ndarray] = []  # what steps point to
        self._step_arrays: dict[int, np.ndarray] = {}
        self._dense_bytes = 0
        self._torch_reads = {name for op in graph.ops if isinstance(op, TorchOp) for name in reads(op)}
        last_uses = graph.last_uses()
        for index, op in enumerate(graph.ops):
            self._add(op)
            self._release(name for name in set(reads(op)) if last_uses[name] == index)
        self._weights = {}  # steps have copies of their own

    # Running

    def run(self, image: Tensor, arena: Tensor, threads: int = 1, together: Together | None = None) -> list[Tensor]:
        """The outputs for one image, (1, C, H, W); with several threads, `together` runs native steps on all."""
        values: Values = {self.graph.inputs[0]: image}
        steps, at = self.step_array(threads), arena.data_ptr()
        for _, stage in self.stages:
            if not isinstance(stage, range):
                stage(values, arena)
            elif together is None:
                runner()(steps[stage.start].ctypes.data, len(stage), at, 0, 1, 0)
            else:
                together(steps[stage.start].ctypes.data, len(stage), at)
        return [self._output(name, values, arena) for name in self.graph.outputs]

    def new_arena(self) -> Tensor:
        return torch.zeros(self.arena_size)

    def step_array(self, threads: int) -> np.ndarray:
        """All steps as the runner reads them, with the rows shared among the threads by their work."""
        if threads not in self._step_arrays:
            found = np.array([step.fields for step in self.steps], np.int64).reshape(-1, len(FIELDS))
            for fields, step in zip(found, self.steps):
                total = np.concatenate([[0], np.cumsum(step.work)])
                bounds = np.searchsorted(total, total[-1] * np.arange(threads + 1) / threads).astype(np.int32)
                bounds[-1] = len(step.work)
                fields[FIELDS.index("bounds")] = self._address_of(bounds)
            self._step_arrays[threads] = found
        return self._step_arrays[threads]

    @property
    def torch_labels(self) -> set[str]:
        return {label for label, stage in self.stages if not isinstance(stage, range)}

    @property
    def nbytes(self) -> int:
        """Bytes of all weights: those of native layers, of dense layers, and all other tensors."""
        native = {id(array): array.nbytes for array in self._arrays}
        read = [self._tensors[name] for name in self._torch_reads & self._tensors.keys()]
        tensors = {tensor.data_ptr(): tensor.nbytes for tensor in read}
        return sum(native.values()) + sum(tensors.values()) + self._dense_bytes

    def _output(self, name: str, values: Values, arena: Tensor) -> Tensor:
        if name in values:
            return values[name]
        if name in self._buffers:
            return self._read(name, arena)
        return self._tensors[name]

    # Compiling

    def _add(self, op: Op) -> None:
        if isinstance(op, TorchOp) and op.elementwise and self.geometry.may_be_native(op) and op.x in self._buffers:
            self._add_elementwise(op)
        elif not isinstance(op, TorchOp) and self.is_native(op):
            self._add_native(op)
        else:
            for name in reads(op):
                self._to_torch(name)
            self._in_torch.add(op.out)
            if isinstance(op, Layer):
                self._dense_bytes += 4 * math.prod(self.graph.shapes[op.weight])
            self.stages.append((op.out, torch_stage(op, self._tensors, self._weights)))

    def is_native(self, op: Layer | Pool) -> bool:
        return self.geometry.may_be_native(op) and (isinstance(op, Pool) or bool(self.choices.get(op.out)))

    def _add_elementwise(self, op: TorchOp) -> None:
        """In torch, on planes: the border stays zero, as f(0) = 0."""
        x = self._buffers[op.x]
        y = self._buffers[op.out] = self._allocate(x.layout, x.channels)
        function, args, kwargs = op.function(), op.args[1:], op.kwargs

        def run(values: Values, arena: Tensor) -> None:
            y.flat(arena).copy_(function(x.flat(arena), *args, **kwargs))

        self.stages.append((op.out, run))

    def _add_native(self, op: Layer | Pool) -> None:
        x = self._to_planes(op.x)
        residual = self._to_planes(op.residual) if isinstance(op, Layer) and op.residual else None
        y = self._buffers[op.out] = self._allocate(self.geometry.layout(op.out), self.geometry.channels(op.out))
        vectors = self.choices.get(op.out) or y.layout.tile_sizes()[0]
        start, offsets = self._input(op, x, y.layout)
        if isinstance(op, Pool):
            rows, weights, bias = _pool_weights(offsets)
            low, high = -math.inf, math.inf
        else:
            scale, shift = folded_norm(op, self._tensors)
            rows, weights = self._weights[op.weight].pairs(offsets, op.groups, scale)
            bias = np.zeros(y.channels, np.float32) if shift is None else shift
            low, high = op.low, op.high
        kernel = Kernel(vectors, residual is not None, isinstance(op, Pool))
        fields = {
            "kernel": address(kernel),
            "x": start,
            "y": y.first,
            "res": residual.first if residual else 0,
            "mask": self._address_of(y.layout.mask),
            "bias": self._address_of(bias),
            "rows": self._address_of(rows),
            "weights": self._address_of(weights),
            "tiles": -(-y.layout.vectors // vectors),
            "pitch": y.layout.pitch,
            "clamp": int(np.array([low, high], np.float32).view(np.int64)[0]),
        }
        work = np.diff(rows.astype(np.int64)) + 4  # writing a row takes about as long as four weights
        self._add_step(Step(op.out, tuple(fields.get(name, 0) for name in FIELDS), work))

    def _add_step(self, step: Step) -> None:
        last = self.stages[-1][1] if self.stages else None
        if isinstance(last, range):  # one call for all native steps in a row
            self.stages[-1] = ("native", range(last.start, last.stop + 1))
        else:
            self.stages.append(("native", range(len(self.steps), len(self.steps) + 1)))
        self.steps.append(step)

    def _input(self, op: Layer | Pool, x: Buffer, out: Layout) -> tuple[int, np.ndarray]:
        """(offset of position 0 in the arena, offset of each (channel, kh, kw) from there).

        With a stride, or where sizes differ, pixels are gathered first, into one plane for each phase of the stride:
        pixel (u, v) of phase (a, b) is pixel (s·u + a - padding, s·v + b - padding) of the input.
        """
        planes = (np.arange(x.channels) * x.layout.pitch)[:, None, None]
        if isinstance(op, Layer) and op.stride is None:
            return x.first, planes
        (dh, dw), (ph, pw), (sh, sw), (kh, kw) = op.dilation, op.padding, stride_of(op), self.geometry.kernel(op)
        i, j = np.arange(kh)[:, None] * dh, np.arange(kw)[None, :] * dw
        if self.geometry.is_direct(op):
            return x.first, planes + (i - ph) * x.layout.row + (j - pw)
        phases = sorted({(a % sh, b % sw) for a in range(0, kh * dh, dh) for b in range(0, kw * dw, dw)})
        pitch = -(-(out.height + int(i.max()) // sh) * out.row // LANES) * LANES
        start = self.arena_size
        self.arena_size += x.channels * len(phases) * pitch + LANES * out.most_vectors + END
        for n, phase in enumerate(phases):
            self._add_gather(op, x, out, start + n * pitch, len(phases) * pitch, phase)
        plane = np.array([[phases.index((a * dh % sh, b * dw % sw)) for b in range(kw)] for a in range(kh)])
        shift = plane * pitch + i // sh * out.row + j // sw
        return start, (np.arange(x.channels) * len(phases) * pitch)[:, None, None] + shift

    def _add_gather(
        self, op: Layer | Pool, x: Buffer, out: Layout, start: int, pitch: int, phase: tuple[int, int]
    ) -> None:
        """Copy the pixels of one phase that are not padding; the arena is zero elsewhere."""
        sizes, outs = (x.layout.height, x.layout.width), (out.height, out.row)
        ranges = []
        for axis in (0, 1):
            s, a = stride_of(op)[axis], phase[axis] - op.padding[axis]
            reach = (self.geometry.kernel(op)[axis] - 1) * op.dilation[axis] // s
            first = max(0, -(a // s))
            last = min(outs[axis] + (reach if axis == 0 else 0), (sizes[axis] - 1 - a) // s + 1)
            ranges.append((first, max(0, last - first), s * first + a))
        (u, height, i), (v, width, j) = ranges
        if height and width:
            fields = {
                "kernel": gather_address(),
                "x": x.first + i * x.layout.row + j,
                "y": start + u * out.row + v,
                "res": height,
                "mask": width,
                "bias": x.layout.row * stride_of(op)[0],
                "rows": out.row,
                "weights": stride_of(op)[1],
                "tiles": x.layout.pitch,
                "pitch": pitch,
            }
            work = np.ones(x.channels, np.int64)
            self._add_step(Step(f"{op.out}, gather", tuple(fields.get(name, 0) for name in FIELDS), work))

    def _address_of(self, array: np.ndarray) -> int:
        self._arrays.append(array)
        return array.ctypes.data

    # Memory

    def _to_planes(self, name: str) -> Buffer:
        """The value in planes; one that is in torch is copied when the next stage runs."""
        if name not in self._buffers:
            layout, channels = self.geometry.layout(name), self.geometry.channels(name)
            buffer = self._buffers[name] = self._allocate(layout, channels)
            images = name in self.geometry.images

            def run(values: Values, arena: Tensor) -> None:
                if images:
                    buffer.images(arena).copy_(values[name])
                else:
                    buffer.tokens(arena).copy_(values[name].reshape(-1, channels))

            self.stages.append((f"{name}, to planes", run))
        return self._buffers[name]

    def _to_torch(self, name: str) -> None:
        if name in self._buffers and name not in self._in_torch:

            def run(values: Values, arena: Tensor) -> None:
                values[name] = self._read(name, arena)

            self.stages.append((f"{name}, to torch", run))
            self._in_torch.add(name)

    def _read(self, name: str, arena: Tensor) -> Tensor:
        buffer = self._buffers[name]
        found = buffer.images(arena) if name in self.geometry.images else buffer.tokens(arena)
        # always a copy: torch may return or keep views of it, and the buffer is used again
        return found.clone(memory_format=torch.contiguous_format).view(self.graph.shapes[name])

    def _allocate(self, layout: Layout, channels: int) -> Buffer:
        fitting = [buffer for buffer in self._free.get(layout, []) if buffer.channels >= channels]
        if fitting:
            smallest = min(fitting, key=lambda buffer: buffer.channels)
            self._free[layout].remove(smallest)
            return Buffer(smallest.offset, layout, channels)
        buffer = Buffer(self.arena_size, layout, channels)
        self.arena_size += layout.size(channels)
        self._owners[buffer.offset] = buffer
        return buffer

    def _release(self, names: Any) -> None:
        for name in names:
            if name in self._buffers:
                buffer = self._owners[self._buffers[name].offset]
                self._free.setdefault(buffer.layout, []).append(buffer)


def torch_stage(op: Op, tensors: Mapping[str, Tensor], weights: Mapping[str, SparseWeight]) -> TorchStage:
    """The operation in torch."""
    if isinstance(op, Layer):
        return _dense_layer(op, tensors, weights)
    if isinstance(op, Pool):

        def pool(values: Values, arena: Tensor) -> None:
            values[op.out] = F.max_pool2d(values[op.x], op.kernel, op.stride, op.padding, op.dilation)

        return pool
    function = op.function()

    def run(values: Values, arena: Tensor) -> None:
        args, kwargs = _filled([op.args, op.kwargs], values, tensors)
        values[op.out] = function(*args, **kwargs)

    return run


def _dense_layer(op: Layer, tensors: Mapping[str, Tensor], weights: Mapping[str, SparseWeight]) -> TorchStage:
    """The layer with all its weights and its norm folded in."""
    weight = weights[op.weight].dense() if op.weight in weights else tensors[op.weight]
    scale, shift = folded_norm(op, tensors)
    bias = None if shift is None else torch.from_numpy(shift)
    if scale is not None:
        by_row = torch.from_numpy(scale).view(-1, *[1] * (weight.dim() - 1))
        weight = weight.mul_(by_row) if op.weight in weights else weight * by_row  # dense() is a copy already

    def run(values: Values, arena: Tensor) -> None:
        x = values[op.x]
        if op.stride is None:
            y = F.linear(x, weight, bias)
        else:
            y = F.conv2d(x, weight, bias, op.stride, op.padding, op.dilation, op.groups)
        if op.residual:
            y += values[op.residual]
        if op.clamps:
            y.clamp_(op.low, op.high)
        values[op.out] = y

    return run


def _pool_weights(offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(first weight of each row, pairs, bias): each channel reads all pixels of its window."""
    channels, size = len(offsets), offsets[0].size
    pairs = np.zeros(channels * size, PAIR)
    pairs["offset"] = offsets.reshape(-1)
    return np.arange(channels + 1, dtype=np.uint32) * np.uint32(size), pairs, np.full(channels, -np.inf, np.float32)


def _filled(value: Any, values: Values, tensors: Mapping[str, Tensor]) -> Any:
    """The arguments of an operation with tensors in place of names."""
    if isinstance(value, Ref):
        return values[value.name] if value.name in values else tensors[value.name]
    if isinstance(value, dict):
        return {key: _filled(part, values, tensors) for key, part in value.items()}
    return [_filled(part, values, tensors) for part in value] if isinstance(value, list) else value
