"""Weights files, local or by URL: read completely or refused; pickles that would run code are never loaded."""

from __future__ import annotations

import argparse
import hashlib
import os
import pickle
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from huggingface_hub import constants
from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import WeakFileLock, are_progress_bars_disabled, get_session
from safetensors.torch import load_file
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..core.errors import first_line
from ..core.text import name_list

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".pth.tar")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_weights_name(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def check_url(url: str) -> None:
    """Refuse URLs that are not https, which could be changed in transit, or do not end in a weights file."""
    parts = urlparse(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ValueError(f"{url}: weights are downloaded over https:// only; or download the file and name its path")
    if not is_weights_name(parts.path):
        raise ValueError(f"{url}: not the URL of a weights file; it must end in one of {', '.join(SUFFIXES)}")


def read_weights(path: Path) -> Mapping[str, Any]:
    """Contents of the file on the CPU: tensors, and in files of torch.save also other entries."""
    try:
        if path.name.lower().endswith(".safetensors"):
            return load_file(path)
        # DINO's checkpoints hold the run's options in a Namespace, which runs no code
        with torch.serialization.safe_globals([argparse.Namespace]):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if named := re.search(r"GLOBAL:? (?:GLOBAL )?([\w.]+)", str(error), flags=re.IGNORECASE):
            raise ValueError(
                f"{path}: refused: besides tensors it holds {named[1]}, and loading that would run code; if you "
                "trust it, save its state_dict as .safetensors"
            ) from error
        raise ValueError(f"{path}: damaged, or not a file of torch.save ({first_line(error)})") from error
    except OSError:
        raise
    except Exception as error:  # readers may raise anything on a truncated file
        raise ValueError(f"{path}: damaged, truncated, or not a weights file ({first_line(error)})") from error
    if not isinstance(checkpoint, Mapping):
        raise ValueError(f"{path}: holds a {type(checkpoint).__name__}, not a state_dict")
    return checkpoint


def fetch(url: str) -> Path:
    """Download the file next to the Hub's cache; it gets its final name only when it is complete."""
    check_url(url)
    home = Path(constants.HF_HUB_CACHE).parent / "hf_px" / hashlib.sha256(url.encode()).hexdigest()[:16]
    path = home / Path(urlparse(url).path).name
    if path.is_file():
        return path
    home.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(home / ".lock"):  # one of several processes downloads, the others wait for the file
        if not path.is_file():
            _download(url, path)
    return path


def _download(url: str, path: Path) -> None:
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with (
            os.fdopen(handle, "wb") as file,
            # identity: otherwise Content-Length may be that of a compressed file
            get_session().stream(
                "GET", url, headers={"Accept-Encoding": "identity"}, follow_redirects=True, timeout=30
            ) as response,
        ):
            if response.status_code != 200:
                raise ValueError(f"{url}: the server answered {response.status_code}; check the URL")
            final = urlparse(str(response.url))
            if final.scheme != "https" and final.hostname not in _LOOPBACK:
                raise ValueError(f"{url}: redirects to {response.url}, which is not https://; refused")
            length = response.headers.get("Content-Length")
            total = int(length) if length and length.isdigit() else None
            bar = tqdm(
                total=total, unit="B", unit_scale=True, desc=path.name, disable=are_progress_bars_disabled() or None
            )
            with bar:
                for piece in response.iter_bytes(1 << 20):
                    file.write(piece)
                    bar.update(len(piece))
        size = os.path.getsize(part)
        if total is not None and size != total:
            raise ValueError(f"{url}: the connection broke after {size:,} of {total:,} bytes; try again")
        os.chmod(part, 0o644)  # mkstemp makes files that only their owner can read
        os.replace(part, path)
    except OfflineModeIsEnabled as error:
        raise ValueError(f"{url}: HF_HUB_OFFLINE is set; unset it, or name a local file") from error
    except (HTTPError, ConnectionError, TimeoutError) as error:
        raise ValueError(f"{url}: the connection failed ({first_line(error)}); check the network, try again") from error
    finally:
        Path(part).unlink(missing_ok=True)


def load_tensors_(model: nn.Module, tensors: Mapping[str, Tensor], source: str) -> list[str]:
    """Load all tensors of the model and raise if one is missing; returns the names that the model does not have."""
    own = model.state_dict()
    # num_batches_tracked is missing in old files, and only read if momentum is None
    missing = [n for n in own if n not in tensors and not n.endswith(".num_batches_tracked")]
    extra = [n for n in tensors if n not in own]
    if missing:
        others = f"; it has {name_list(extra, 8)} instead" if extra else ""
        option_a = all(".shortcut." in name for name in missing)  # He et al.'s CIFAR ResNet has no weights there
        hint = "is it a resnet20_cifar_a?" if option_a else "is it of another architecture?"
        raise ValueError(f"{source}: lacks {name_list(missing, 8)}{others}; {hint}")
    for name, tensor in tensors.items():
        if name in own and (have := tuple(tensor.shape)) != (want := tuple(own[name].shape)):
            raise ValueError(f"{source}: {name} is {have}, the architecture's is {want}; is it of another one?")
        if name in own and tensor.is_floating_point() != own[name].is_floating_point():
            raise ValueError(f"{source}: {name} is {tensor.dtype}, the architecture's is {own[name].dtype}")
    model.load_state_dict({n: t for n, t in tensors.items() if n in own}, strict=False)
    return extra
