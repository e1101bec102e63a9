"""Programs of the sparse runtime whose choices a test makes, not the clock; the float64 model is the oracle."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hf_px.core.prunable import prunable
from hf_px.runtime.fast import FastModel
from hf_px.runtime.geometry import Geometry
from hf_px.runtime.graph import Graph, Layer, Op
from hf_px.runtime.program import Program
from hf_px.runtime.weights import SparseWeight

Choose = Callable[[Geometry, Layer], int]


def sparse(turn: int = 0) -> Choose:
    """Every layer runs in the kernel, with the tile size that comes `turn`-th."""

    def choose(geometry: Geometry, op: Layer) -> int:
        sizes = geometry.layout(op.out).tile_sizes()
        return sizes[turn % len(sizes)]

    return choose


def dense(geometry: Geometry, op: Layer) -> int:
    """Every layer runs in torch."""
    return 0


def choices(graph: Graph, geometry: Geometry, choose: Choose) -> dict[str, int]:
    layers = [op for op in graph.ops if isinstance(op, Layer) and geometry.may_be_native(op)]
    return {op.out: choose(geometry, op) for op in layers}


def program_of_ops(ops: list[Op], shapes: dict[str, Any], tensors: dict[str, Tensor], choose: Choose) -> Program:
    """A program of operations that are given, not exported; "x" goes in, the last result comes out."""
    shapes = {**shapes, **{name: tuple(t.shape) for name, t in tensors.items()}}
    graph = Graph(ops, ["x"], [ops[-1].out], shapes, {name: name for name in tensors}, {})
    weights = {op.weight: SparseWeight.from_dense(tensors[op.weight]) for op in ops if isinstance(op, Layer)}
    geometry = Geometry(graph)
    return Program(graph, geometry, tensors, weights, choices(graph, geometry, choose))


def programs_of(model: nn.Module, size: tuple[int, ...], *chosen: Choose) -> list[Program]:
    """Programs of a module for images of this size, one for each way to choose."""
    found = FastModel(model, progress=False)
    graph = found._export(size)
    tensors, weights = found._tensors(graph, found._weights())
    geometry = Geometry(graph)
    return [Program(graph, geometry, tensors, weights, choices(graph, geometry, choose)) for choose in chosen]


def run(program: Program, x: Tensor, arena: Tensor | None = None) -> Tensor:
    """The first output for a batch, all images in one arena."""
    arena = program.new_arena() if arena is None else arena
    with torch.inference_mode():
        return torch.cat([program.run(image[None], arena)[0].clone() for image in x])


def always_sparse(model: FastModel) -> FastModel:
    """The model never runs the dense one, whatever the clock says."""
    model._use_dense = lambda *_: False  # type: ignore[method-assign]
    return model


def prune_(model: nn.Module, density: float, seed: int = 0) -> nn.Module:
    """Zero all but a share of each prunable tensor, drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in prunable(model).values():
            weight.mul_(torch.rand(weight.shape, generator=generator) < density)
    return model


def trained_(model: nn.Module, seed: int = 0) -> nn.Module:
    """Statistics, scales and biases as a trained network has them, not ones and zeros; eval mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.dim() == 1 and tensor.is_floating_point():
                tensor.add_(torch.rand(tensor.shape, generator=generator) / 2 - (0 if "var" in name else 0.25))
    return model.eval()


def exact(model: nn.Module, x: Tensor) -> Any:
    """What the model gives in float64."""
    with torch.no_grad():
        return copy.deepcopy(model).double()(x.double())


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    assert found.shape == expected.shape, f"{tuple(found.shape)}, expected {tuple(expected.shape)}"
    if not expected.numel():
        return 0.0
    scale = float(expected.abs().max()) or 1.0
    return float((found.double() - expected.double()).abs().max()) / scale
