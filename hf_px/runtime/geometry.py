"""Geometry: how each value of a graph lies in planes, as images (1, C, H, W) or as tokens (…, C)."""

from __future__ import annotations

import math

from .graph import Graph, Layer, Op, Pool, TorchOp, reads
from .layout import Layout

Size = tuple[int, int]  # height and width of a plane


class Geometry:
    """One layout for all values of one size, with the border that their widest reader or writer needs."""

    def __init__(self, graph: Graph) -> None:
        self.shapes = graph.shapes
        self.images = _images(graph)
        borders: dict[Size, Size] = {}

        def need(name: str, above: int = 0, gap: int = 0) -> None:
            old = borders.get(self.size(name), (0, 0))
            borders[self.size(name)] = max(old[0], above), max(old[1], gap)

        for op in graph.ops:
            if not self.may_be_native(op):
                continue
            for name in (op.out, *reads(op)):
                need(name)
            if isinstance(op, Pool) or (isinstance(op, Layer) and op.stride):
                if self.is_direct(op):
                    need(op.x, *op.padding)
                else:  # a gathered row has a few pixels more than the output's
                    need(op.out, 0, (self.kernel(op)[1] - 1) * op.dilation[1] // stride_of(op)[1])
        self.layouts = {size: Layout(*size, *border) for size, border in borders.items()}

    def may_be_native(self, op: Op) -> bool:
        """True for layers and pools whose values all are images, or all tokens, and for elementwise operations."""
        values = [op.out, *reads(op)] if not isinstance(op, TorchOp) or op.elementwise else []
        kinds = {name in self.images for name in values}
        if not all(name in self.shapes for name in values) or len(kinds) != 1:
            return False
        if kinds == {True} and not all(len(self.shapes[name]) == 4 and self.shapes[name][0] == 1 for name in values):
            return False  # an image without its batch dimension, or cut into several
        return isinstance(op, TorchOp) or kinds == {isinstance(op, Pool) or op.stride is not None}

    def size(self, name: str) -> Size:
        shape = self.shapes[name]
        return (shape[2], shape[3]) if name in self.images else (1, math.prod(shape[:-1]))

    def layout(self, name: str) -> Layout:
        return self.layouts[self.size(name)]

    def channels(self, name: str) -> int:
        return self.shapes[name][1 if name in self.images else -1]

    def kernel(self, op: Layer | Pool) -> Size:
        if isinstance(op, Pool):
            return op.kernel
        return self.shapes[op.weight][2], self.shapes[op.weight][3]

    def is_direct(self, op: Layer | Pool) -> bool:
        """Stride 1 and as many pixels out as in: the kernel reads the input where it lies."""
        centred = all(2 * p == (k - 1) * d for p, k, d in zip(op.padding, self.kernel(op), op.dilation))
        return op.stride == (1, 1) and centred and self.size(op.out) == self.size(op.x)


def stride_of(op: Layer | Pool) -> Size:
    assert op.stride is not None
    return op.stride


def _images(graph: Graph) -> set[str]:
    """Values that convolutions and pools read and write, and what elementwise operations make of them."""
    found: set[str] = set()
    for op in graph.ops:
        if isinstance(op, Pool) or (isinstance(op, Layer) and op.stride):
            found |= {op.out, *reads(op)}
    for op in graph.ops:
        if isinstance(op, TorchOp) and op.elementwise and found & set(reads(op)):
            found.add(op.out)
    return found
