"""What a report is made of, on disk: a part a file, named by a digest of all that it depends on.

So a report that was interrupted goes on, one ticket more costs that ticket, and nothing stale is ever read.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from .. import __version__
from ..core.files import write_atomic

NAME = ".parts"  # in the report's directory; may be removed at any time


class Parts:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, name: str, key: Mapping[str, Any], end: str = "") -> Path:
        text = json.dumps({**key, "hf-px": __version__}, sort_keys=True, default=str)
        return self.directory / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:24]}{end}"

    def known(self, name: str, key: Mapping[str, Any], find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The part, read or found; found ones are written at once."""
        path = self.path(name, key, ".json")
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return found
        except (OSError, ValueError):
            found = json.loads(json.dumps(find()))  # as it will be read the next time
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(found).encode())
            return found

    def memo(self, name: str, key: Mapping[str, Any]) -> Memo:
        return Memo(self.path(name, key, ".memo"))


class Memo(MutableMapping[str, Tensor]):
    """Tensors by name, each a file: what a long computation has found so far."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.safetensors"

    def __contains__(self, name: object) -> bool:
        try:
            self[str(name)]
        except KeyError:
            return False
        return True

    def __getitem__(self, name: str) -> Tensor:
        try:
            return load_file(self._path(name))["value"]
        except (OSError, SafetensorError, KeyError) as error:  # not there, or damaged, which is as good
            raise KeyError(name) from error

    def __setitem__(self, name: str, value: Tensor) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        write_atomic(self._path(name), save({"value": value.contiguous()}))

    def __delitem__(self, name: str) -> None:
        self._path(name).unlink()

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in sorted(self.directory.glob("*.safetensors")))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def forget(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def weights_of(model: nn.Module) -> str:
    return digest_of(model.state_dict())
