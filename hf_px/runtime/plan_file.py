"""A plan on disk: the graph of a model for one image size, and the choice for each layer. Data, never code.

torch.export takes seconds; a plan that was made before is read in milliseconds. A plan is one safetensors file with
constants as tensors and the rest as JSON in its metadata. Its name is a digest of all that it depends on: the model's
record, the positions of kept weights, the image size, versions, and the processor.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils import _pytree as pytree

from .. import __version__
from ..core.files import write_atomic
from ..core.versions import versions
from .graph import Graph, Layer, Op, Pool, Ref, TorchOp
from .kernels import processor
from .weights import SparseWeight

_KINDS = {"Layer": Layer, "Pool": Pool, "TorchOp": TorchOp}
_TORCH_TYPES = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


def plan_path(
    folder: Path, record: Mapping[str, Any], weights: Mapping[str, SparseWeight], size: tuple[int, ...]
) -> Path:
    """Where the plan of this model is kept."""
    key = {"hf-px": __version__, "processor": processor(), "size": size, "record": record, "versions": versions()}
    sha = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode())
    for name, weight in sorted(weights.items()):
        sha.update(f"{name} {weight.shape}".encode())
        sha.update(weight.positions.tobytes())
    return folder / f"{sha.hexdigest()[:32]}.safetensors"


def save_plan(path: Path, graph: Graph, choices: Mapping[str, int]) -> None:
    """Write the plan; one that JSON cannot express, or a folder that cannot be written to, is passed over."""
    try:
        plan = {
            "ops": [{"kind": type(op).__name__, **_to_json(asdict_shallow(op))} for op in graph.ops],
            "inputs": graph.inputs,
            "outputs": graph.outputs,
            "shapes": graph.shapes,
            "tensors": graph.tensors,
            "out_spec": pytree.treespec_dumps(graph.out_spec),
            "choices": dict(choices),
        }
        text, constants = json.dumps(plan), {name: t.contiguous() for name, t in graph.constants.items()}
        data = save(constants, {"plan": text, "sha256": _digest(text, constants)})
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)
    except (TypeError, ValueError, NotImplementedError, OSError):
        return


def load_plan(path: Path) -> tuple[Graph, dict[str, int]] | None:
    """The graph and the choices; None if there is no plan, or none that can be read."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            constants = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it has no iterator
        if metadata["sha256"] != _digest(metadata["plan"], constants):
            raise ValueError(f"{path} is damaged")
        plan = json.loads(metadata["plan"])
        graph = Graph(
            [_op(dict(op)) for op in plan["ops"]],
            plan["inputs"],
            plan["outputs"],
            {name: tuple(shape) for name, shape in plan["shapes"].items()},
            plan["tensors"],
            constants,
            pytree.treespec_loads(plan["out_spec"]),
        )
        return graph, {name: int(vectors) for name, vectors in plan["choices"].items()}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, NotImplementedError):
        return None


def _digest(plan: str, constants: Mapping[str, Tensor]) -> str:
    sha = hashlib.sha256(plan.encode())
    for name, tensor in sorted(constants.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def plan_folder() -> Path:
    """plans/ in the cache of hf_px: HF_PX_CACHE, or hf_px in the cache of Hugging Face."""
    from huggingface_hub import constants

    return Path(os.environ.get("HF_PX_CACHE") or os.path.join(constants.HF_HOME, "hf_px")) / "plans"


def asdict_shallow(op: Op) -> dict[str, Any]:
    return asdict(op) if not isinstance(op, TorchOp) else vars(op)


def _op(fields: dict[str, Any]) -> Op:
    kind = _KINDS[fields.pop("kind")]
    found = kind(**_from_json(fields))
    if isinstance(found, TorchOp):
        if found.target != "getitem" and not found.target.startswith("aten."):
            raise ValueError(f"{found.target} is not an operator of torch")
        found.function()  # raises AttributeError if this torch has no such operator
        return found
    for name in ("stride", "padding", "dilation", "kernel", "norm"):
        if isinstance(getattr(found, name, None), list):
            setattr(found, name, tuple(getattr(found, name)))
    return found


def _to_json(value: Any) -> Any:
    if isinstance(value, Ref):
        return {"ref": value.name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    for name, kind in _TORCH_TYPES.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, dict):
        return {key: _to_json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(part) for part in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{type(value).__name__} has no JSON")


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(part) for part in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, inner),) = value.items()
        if key == "ref":
            return Ref(str(inner))
        if key == "float":
            return float(inner)
        if key == "device":
            return torch.device(inner)
        if key in _TORCH_TYPES:
            found = getattr(torch, str(inner))
            if not isinstance(found, _TORCH_TYPES[key]):
                raise ValueError(f"torch.{inner} is not a {key}")
            return found
    return {key: _from_json(part) for key, part in value.items()}
