"""A cache of measurements on disk: one file each, named by a digest of everything that the measurement depends on.

An interrupted report resumes, one more ticket costs only that ticket, and a stale entry is never read.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from .. import __version__
from ..core.files import write_atomic


class ReportCache:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, name: str, key: Mapping[str, Any], suffix: str) -> Path:
        text = json.dumps({**key, "hf-px": __version__}, sort_keys=True, default=str)
        return self.directory / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:24]}{suffix}"

    def get(self, name: str, key: Mapping[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The entry as it was read; if there is none, compute() is called and stored."""
        path = self.path(name, key, ".json")
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return found
        except (OSError, ValueError):
            found = json.loads(json.dumps(compute()))  # the same as when it is read the next time
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(found).encode())
            return found

    def tensors(self, name: str, key: Mapping[str, Any]) -> TensorFiles:
        """Storage for the intermediate results of one long computation."""
        return TensorFiles(self.path(name, key, ".memo"))


class TensorFiles:
    """Tensors by name, with a file for each; the `memo` of analysis.ntk.spectrum."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.safetensors"

    def __getitem__(self, name: str) -> Tensor:
        try:
            return load_file(self._path(name))["value"]
        except (OSError, SafetensorError, KeyError) as error:  # a damaged file counts as missing
            raise KeyError(name) from error

    def __setitem__(self, name: str, value: Tensor) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        write_atomic(self._path(name), save({"value": value.contiguous()}))

    def delete(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and bytes."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def weights_digest(model: nn.Module) -> str:
    return digest_of(model.state_dict())
