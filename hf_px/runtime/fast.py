"""fast(model): a pruned model for inference that skips its zeros. Same call, same output; CPU, float32."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..core.errors import TicketError, UnsupportedModelError
from ..core.forward import input_shape
from ..core.prunable import plain_module, prunable
from ..models import architecture
from .geometry import Geometry
from .graph import Graph, Layer, TorchOp, export, reads
from .kernels import runner
from .plan_file import load_plan, plan_folder, plan_path, save_plan
from .program import Program
from .threads import Shared, in_parallel
from .timing import PlanTable, step_times
from .tuning import choose
from .weights import SparseWeight

Size = tuple[int, ...]  # channels, height, width
_MOST_ARENAS = 8
_TURNS = 3


class FastModel(nn.Module):
    """A pruned model whose convolutions and linear layers skip their zeros. `fast` and `from_pretrained` make it.

    It is compiled for an image size when it first sees one. Where zeros do not pay, it runs the dense `model`; with
    `weights`, a function that gives the kept weights by name, `model` has no pruned tensors and cannot be run.
    """

    def __init__(
        self,
        model: nn.Module,
        weights: Callable[[], Mapping[str, SparseWeight]] | None = None,
        *,
        record: Mapping[str, Any] | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__()
        self._models = (model,)  # a tuple, so that its parameters are not this module's
        self._read_weights, self._progress = weights, progress
        # names of plans depend on the modules too: some were perhaps exchanged, as an activation
        self._record = None if record is None else {**record, "modules": repr(model)}
        self._programs: dict[Size, Program] = {}
        self._arenas: dict[Size, list[Tensor]] = {}
        self._dense_is_faster: dict[Size, bool] = {}
        self._compiling = threading.Lock()
        super().train(False)

    def __getattr__(self, name: str) -> Any:
        """Attributes of the pruned model, such as config or pretrained_cfg, are found here too."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return getattr(self._models[0], name)

    # Compiling

    def compile_for(self, size: Size) -> Program:
        """The program for images of this size."""
        with self._compiling:
            if size not in self._programs:
                weights = self._weights()
                path = self.plan_path(size, weights)
                plan = load_plan(path) if path else None
                graph = plan[0] if plan else self._export(size)
                tensors, sparse = self._tensors(graph, weights)
                geometry = Geometry(graph)
                choices = plan[1] if plan else choose(graph, geometry, tensors, sparse, progress=self._progress)
                self._programs[size] = Program(graph, geometry, tensors, sparse, choices)
                self._arenas[size] = []
                if path and not plan:
                    save_plan(path, graph, choices)
        return self._programs[size]

    def plan_path(self, size: Size, weights: Mapping[str, SparseWeight]) -> Path | None:
        """Where the plan for images of this size is kept; None if it is not kept."""
        return None if self._record is None else plan_path(plan_folder(), self._record, weights, size)

    def _weights(self) -> Mapping[str, SparseWeight]:
        if self._read_weights is not None:
            return self._read_weights()
        return {name: SparseWeight.from_dense(weight) for name, weight in prunable(self._models[0]).items()}

    def _export(self, size: Size) -> Graph:
        model, device = self._models[0], "cpu"
        if self._read_weights is not None:  # pruned tensors are on the meta device, so all have to be
            model, device = copy.deepcopy(model).to("meta"), "meta"
        graph = export(model, torch.zeros(1, *size, device=device))
        if any(constant.is_meta for constant in graph.constants.values()):
            raise UnsupportedModelError(
                f"{type(model).__name__} makes constants when it is called; use hf_px.fast(hf_px.from_pretrained(…))"
            )
        for name in graph.outputs:
            if graph.shapes.get(name, (1,))[:1] != (1,):
                raise UnsupportedModelError(
                    f"output {name} has shape {graph.shapes[name]}: without one row per image, the sparse runtime "
                    "cannot split a batch"
                )
        return graph

    def _tensors(
        self, graph: Graph, weights: Mapping[str, SparseWeight]
    ) -> tuple[dict[str, Tensor], dict[str, SparseWeight]]:
        """({name in the graph: tensor}, {name in the graph: kept weights of a layer})"""
        state: dict[str, Tensor] = dict(self._models[0].named_parameters(remove_duplicate=False))
        state |= dict(self._models[0].named_buffers(remove_duplicate=False))
        tensors = {name: state[key].detach() for name, key in graph.tensors.items()} | graph.constants
        layers = {op.weight for op in graph.ops if isinstance(op, Layer)}
        in_torch = {name for op in graph.ops if isinstance(op, TorchOp) for name in reads(op)}
        sparse = {name: weights[key] for name, key in graph.tensors.items() if name in layers and key in weights}
        for name, key in graph.tensors.items():
            shape = sparse[name].shape if name in sparse else tuple(tensors[name].shape)
            if shape != graph.shapes[name]:
                raise UnsupportedModelError(f"{key} has shape {shape}, its plan {graph.shapes[name]}; delete the plan")
            if key in weights and name in in_torch:  # other operations than layers need the dense tensor
                tensors[name] = weights[key].dense()
        return tensors, sparse

    # Running

    def forward(self, x: Tensor | None = None, **kwargs: Any) -> Any:
        if x is None and len(kwargs) == 1:  # pixel_values=… of transformers
            x = next(iter(kwargs.values()))
        elif kwargs:
            raise TypeError(f"the sparse runtime takes images alone, not {', '.join(kwargs)}")
        _check_images(x)
        assert x is not None
        program = self.compile_for(tuple(x.shape[1:]))
        if self._use_dense(program, x):
            with torch.inference_mode():
                return self._models[0](x)
        return pytree.tree_unflatten(self._run(program, x), program.graph.out_spec)

    def _run(self, program: Program, x: Tensor) -> list[Tensor]:
        """The outputs of a batch: images side by side on several threads, or one image on all of them."""
        threads, arenas = torch.get_num_threads(), self._arenas[tuple(x.shape[1:])]

        @torch.inference_mode()
        def one(i: int, together: Shared | None = None) -> list[Tensor]:
            try:
                arena = arenas.pop()  # atomic, so that no two calls share an arena
            except IndexError:
                arena = program.new_arena()
            try:
                return program.run(x[i : i + 1], arena, threads if together else 1, together)
            finally:
                if len(arenas) < _MOST_ARENAS:
                    arenas.append(arena)

        if threads == 1:
            found = [one(i) for i in range(len(x))]
        elif len(x) > 1:
            found = in_parallel(one, range(len(x)), min(threads, len(x)))
        else:
            with Shared(threads) as together:
                found = [one(0, together)]
        with torch.inference_mode():
            return [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*found)]

    def _use_dense(self, program: Program, x: Tensor) -> bool:
        """True if the dense model is faster on batches of this shape; both are tried on the first one."""
        if self._read_weights is not None:
            return False
        shape = tuple(x.shape)
        if shape not in self._dense_is_faster:
            times: dict[str, list[float]] = {"sparse": [], "dense": []}
            results: dict[str, Any] = {}
            with torch.inference_mode():
                for _ in range(_TURNS):
                    for name, run in (("sparse", lambda: self._run(program, x)), ("dense", lambda: self._models[0](x))):
                        start = time.perf_counter()
                        results[name] = run()
                        times[name].append(time.perf_counter() - start)
                _check_equal(results["sparse"], pytree.tree_leaves(results["dense"]), type(self._models[0]).__name__)
            self._dense_is_faster[shape] = min(times["dense"][1:]) < min(times["sparse"][1:])
        return self._dense_is_faster[shape]

    def train(self, mode: bool = True) -> FastModel:
        if mode:
            raise UnsupportedModelError("the sparse runtime is for inference; train the model that it was made from")
        return self

    def plan(self, size: Size | None = None) -> PlanTable:
        """By step: sparse or dense, kept weights, and milliseconds of one image on one thread."""
        size = size or next(iter(self._programs), None) or input_shape(self._models[0])
        if size is None:
            raise ValueError("`size`: the model names no image size; give (channels, height, width)")
        program = self.compile_for(tuple(size))
        return PlanTable.of(program, step_times(program, torch.zeros(1, *size)))

    @property
    def nbytes(self) -> int:
        """Bytes of all weights in memory, without activations."""
        return max((program.nbytes for program in self._programs.values()), default=0)


def fast(model: nn.Module, *, input_size: Size | None = None, progress: bool = True) -> FastModel:
    """A pruned model for inference on the CPU that skips its zeros: same call, same output.

    Convolutions and linear layers run sparse where that is faster; each is timed both ways. `input_size` (channels,
    height, width) is compiled now, by default the model's own; other sizes are compiled when they first come. The
    weights are copied: later changes of `model` are not seen.
    """
    model = plain_module(model)
    runner()  # says what to install
    for name, module in model.named_modules():
        if module.training:
            which = f"{name} is in training mode; " if name else ""
            raise UnsupportedModelError(f"{which}the sparse runtime is for inference; call model.eval() first")
    for name, tensor in model.state_dict().items():
        if tensor.device.type != "cpu":
            raise UnsupportedModelError(f"{name} is on {tensor.device}; the sparse runtime is for the CPU: model.cpu()")
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise UnsupportedModelError(f"{name} is {tensor.dtype}; the sparse runtime is for float32: model.float()")
    record = None
    with contextlib.suppress(TicketError):  # a module of the user's own has no record, and its plan is not kept
        record = architecture.describe(model)
    record = None if record is None or "custom" in record else record
    model = copy.deepcopy(model)
    return compile_default(FastModel(model, record=record, progress=progress), model, input_size)


def compile_default(found: FastModel, model: nn.Module, size: Size | None = None) -> FastModel:
    """Compile for the given image size, or for the model's own if it names one."""
    size = size or input_shape(model)
    if size is not None and len(size) == 3:
        found.compile_for(tuple(size))
    return found


def _check_equal(sparse: list[Tensor], dense: list[Tensor], name: str) -> None:
    """Refuse a model that mixes the images of a batch, which here run one by one. Rounding is far below a hundredth."""
    for ours, theirs in zip(sparse, dense):
        is_equal = ours.shape == theirs.shape
        if is_equal and theirs.is_floating_point():
            known = torch.isfinite(theirs) & torch.isfinite(ours)  # inf times a pruned weight is nan in torch alone
            a, b = ours[known], theirs[known]
            is_equal = not len(a) or bool((a - b).abs().max() <= 0.01 * b.abs().max())
        if not is_equal:
            raise UnsupportedModelError(
                f"{name} gives other results for single images than for a batch of {len(theirs)}; the sparse runtime "
                "runs images one by one"
            )


def _check_images(x: Any) -> None:
    if not isinstance(x, Tensor) or x.dim() != 4 or not len(x):
        what = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"the sparse runtime takes a batch of images (images, channels, height, width), not {what}")
    if x.device.type != "cpu" or x.dtype != torch.float32:
        raise ValueError(f"images are {x.dtype} on {x.device}; the sparse runtime takes float32 on the CPU")
    if x.requires_grad and torch.is_grad_enabled():
        raise UnsupportedModelError("the sparse runtime has no gradients; pass images without requires_grad")
