"""Cache of dense twins, keyed by all that decides them: the same twin serves every method and sparsity."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants
from safetensors import SafetensorError
from torch import Tensor, nn

from ..data import Pairs, Split
from .checkpoint import read_tensors, write_tensors
from .run_directory import run_versions


def dense_path(settings: Mapping[str, Any], model: nn.Module, train: Split | Pairs) -> Path:
    """File of the dense twin with these settings, initial weights and training data."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    digest.update(json.dumps(run_versions(), sort_keys=True).encode())
    digest.update(digest_of_data(train).encode())
    digest.update(digest_of_weights(model).encode())
    home = os.environ.get("HF_PX_CACHE") or os.path.join(constants.HF_HOME, "hf_px")
    return Path(home).expanduser() / "dense" / f"{digest.hexdigest()[:32]}.safetensors"


def digest_of_data(train: Split | Pairs) -> str:
    """Digest of all labels and sixteen images: reading all may take hours, and other data almost always differ here."""
    digest = hashlib.sha256()
    for part in train.digest_parts():
        digest.update(part)
    return digest.hexdigest()[:32]


def digest_of_weights(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def save_dense(path: Path, model: nn.Module, found: Mapping[str, Any]) -> None:
    """Write weights and results to one file. Two runs that write it write the same."""
    write_tensors(path, model.state_dict(), {"hf_px_dense": json.dumps(found)})


def load_dense(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """(weights, results), or None if there is no readable file."""
    if not path.is_file():
        return None
    try:
        weights, header = read_tensors(path)
        return weights, json.loads(header["hf_px_dense"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        print(f"{path}: damaged cache file ({error}); training the dense model again", file=sys.stderr)
        return None
