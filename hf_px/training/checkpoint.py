"""Checkpoints of a training: θ, its moving average and the optimizer's state, a safetensors file each; the newest stay.

A file is written to a temporary name and renamed, so a kill leaves complete files only. Nothing is pickled: values that
are not tensors are JSON in the file's header. Random generators have no state to save: draws depend on the step number.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer

from ..core.files import write_atomic


class Checkpoint(NamedTuple):
    step: int
    tensors: dict[str, Tensor]
    notes: dict[str, Any]


class Checkpoints:
    """`directory/name-<step>.safetensors`; all but the newest `keep` are removed after each save."""

    def __init__(self, directory: Path, name: str, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"`keep_checkpoints` {keep}: a resume needs at least 1")
        self.directory, self.name, self.keep = directory, name, keep

    def save(self, step: int, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
        path = self.directory / f"{self.name}-{step:08d}.safetensors"
        write_tensors(path, tensors, {"step": str(step), "notes": json.dumps(notes)})
        for old in self._found()[: -self.keep]:
            old.unlink(missing_ok=True)

    def newest(self) -> Checkpoint | None:
        """The newest readable checkpoint; a damaged one is reported and skipped."""
        for path in reversed(self._found()):
            try:
                tensors, header = read_tensors(path)
                return Checkpoint(int(header["step"]), tensors, json.loads(header["notes"]))
            except (SafetensorError, OSError, ValueError, KeyError) as error:
                print(f"{path}: damaged checkpoint ({error}); taking the one before it", file=sys.stderr)
        return None

    def remove(self) -> None:
        for path in self._found():
            path.unlink(missing_ok=True)

    def _found(self) -> list[Path]:
        pattern = re.compile(rf"{re.escape(self.name)}-(\d+)\.safetensors")
        paths = self.directory.iterdir() if self.directory.is_dir() else ()
        steps = {path: int(match[1]) for path in paths if (match := pattern.fullmatch(path.name))}
        return sorted(steps, key=lambda path: steps[path])


def state_of(model: nn.Module, optimizer: Optimizer, ema: nn.Module | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors by name, other values for JSON) of a model, its optimizer and its moving average."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"ema.{name}": tensor for name, tensor in (ema.state_dict() if ema else {}).items()}
    full = optimizer.state_dict()
    numbers: dict[str, dict[str, Any]] = {}
    for index, state in full["state"].items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{key}"] = value
            else:
                numbers.setdefault(str(index), {})[key] = value
    return tensors, {"optimizer": {"numbers": numbers, "groups": full["param_groups"]}}


def load_(found: Checkpoint, model: nn.Module, optimizer: Optimizer, ema: nn.Module | None) -> None:
    """Load a checkpoint into the existing memory layout, so that every later sum has the same bits."""
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "ema": {}, "optimizer": {}}
    for name, tensor in found.tensors.items():
        kind, _, rest = name.partition(".")
        parts.setdefault(kind, {})[rest] = tensor
    model.load_state_dict(parts["model"])
    if ema is not None:
        ema.load_state_dict(parts["ema"])
    state: dict[int, dict[str, Any]] = {}
    saved = found.notes["optimizer"]
    for index, numbers in saved["numbers"].items():
        state.setdefault(int(index), {}).update(numbers)
    for name, tensor in parts["optimizer"].items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    groups = [{k: tuple(v) if k == "betas" else v for k, v in group.items()} for group in saved["groups"]]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for weight, values in optimizer.state.items():
        for key, value in values.items():
            if isinstance(value, Tensor) and value.shape == weight.shape:  # in the memory format of the weight
                values[key] = torch.empty_like(weight, dtype=value.dtype).copy_(value)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # cloned: safetensors refuses tensors that share memory, as tied weights do
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomic(path, save(own, header))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors, header)"""
    with safe_open(path, framework="pt") as file:
        names = file.keys()
        # cloned: from the mapped file into memory aligned like torch's own
        return {name: file.get_tensor(name).clone() for name in names}, file.metadata()
