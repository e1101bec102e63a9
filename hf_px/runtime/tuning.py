"""choose(…): the fastest way to run each layer on this machine, by trying: tiles of several sizes, and dense torch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from tqdm.auto import tqdm

from .geometry import Geometry
from .graph import Graph, Layer
from .kernels import runner
from .program import Program, torch_stage
from .weights import SparseWeight

_SURELY_SPARSE = 0.02  # below this density the dense layer is not tried
_REPEATS = 5


def choose(
    graph: Graph,
    geometry: Geometry,
    tensors: Mapping[str, Tensor],
    weights: Mapping[str, SparseWeight],
    *,
    progress: bool = True,
    dense: bool = True,
) -> dict[str, int]:
    """{layer: vectors in a tile, or 0 for the dense layer of torch}; with `dense=False` every layer is sparse."""
    layers = [op for op in graph.ops if isinstance(op, Layer) and op.weight in weights and geometry.may_be_native(op)]
    found = {}
    for op in tqdm(layers, desc="sparse runtime", unit="layer", disable=not progress, leave=False):
        times = {
            vectors: _sparse_time(op, graph, geometry, tensors, weights, vectors)
            for vectors in geometry.layout(op.out).tile_sizes()
        }
        best = min(times, key=lambda vectors: times[vectors])
        weight = weights[op.weight]
        try_dense = dense and weight.kept > _SURELY_SPARSE * weight.total
        faster = try_dense and _dense_time(op, graph, tensors, weights) < times[best]
        found[op.out] = 0 if faster else best
    return found


def _alone(op: Layer, graph: Graph) -> Graph:
    return Graph([op], [op.x], [], graph.shapes, graph.tensors, graph.constants)


def _sparse_time(
    op: Layer, graph: Graph, geometry: Geometry, tensors: Mapping[str, Tensor], weights: Mapping[str, SparseWeight],
    vectors: int,
) -> float:  # fmt: skip
    program = Program(_alone(op, graph), geometry, tensors, weights, {op.out: vectors})
    arena, steps, run = program.new_arena(), program.step_array(1), runner()
    return shortest(lambda: run(steps.ctypes.data, len(steps), arena.data_ptr(), 0, 1, 0))


def _dense_time(op: Layer, graph: Graph, tensors: Mapping[str, Tensor], weights: Mapping[str, SparseWeight]) -> float:
    values = {op.x: torch.zeros(graph.shapes[op.x])}
    if op.residual:
        values[op.residual] = torch.zeros(graph.shapes[op.residual])
    stage, threads = torch_stage(op, tensors, weights), torch.get_num_threads()
    torch.set_num_threads(1)  # as the sparse kernel is timed
    try:
        return shortest(lambda: stage(values, values[op.x]))
    finally:
        torch.set_num_threads(threads)


def shortest(work: Callable[[], object], repeats: int = _REPEATS) -> float:
    """Seconds of the fastest of several runs, after a first one that is not counted."""
    work()
    best = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best
