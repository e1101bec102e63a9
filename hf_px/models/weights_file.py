"""Weights files, from a disk or an address: whole or refused, and never a pickle that runs code."""

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

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".pth.tar")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_weights(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def check_url(url: str) -> None:
    """An address of a weights file, over a connection that nobody can change on the way."""
    parts = urlparse(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ValueError(f"{url}: weights are fetched over https:// alone; or download the file and name its path")
    if not is_weights(parts.path):
        raise ValueError(f"{url}: not the address of a weights file; it must end in one of {', '.join(SUFFIXES)}")


def read(path: Path) -> Mapping[str, Any]:
    """What the file holds, on the CPU: tensors, and for torch.save's files what lies beside them."""
    try:
        if path.name.lower().endswith(".safetensors"):
            return load_file(path)
        # DINO's checkpoints hold the options of the run: a bag of names and values, without code
        with torch.serialization.safe_globals([argparse.Namespace]):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if named := re.search(r"GLOBAL:? (?:GLOBAL )?([\w.]+)", str(error), flags=re.IGNORECASE):
            raise ValueError(
                f"{path}: refused: besides tensors it holds {named[1]}, and to load that is to run code; where you "
                "trust it, save its state_dict as .safetensors"
            ) from error
        raise ValueError(f"{path}: damaged, or no file of torch.save ({first_line(error)})") from error
    except OSError:
        raise
    except Exception as error:  # what half a file does to a reader can be anything
        raise ValueError(f"{path}: damaged, cut short, or no weights file ({first_line(error)})") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"{path}: holds a {type(found).__name__}, not a state_dict")
    return found


def fetch(url: str) -> Path:
    """The file at the address, kept beside the Hub's cache; it takes its name there only when it is whole."""
    check_url(url)
    home = Path(constants.HF_HUB_CACHE).parent / "hf_px" / hashlib.sha256(url.encode()).hexdigest()[:16]
    path = home / Path(urlparse(url).path).name
    if path.is_file():
        return path
    home.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(home / ".lock"):  # of several processes one downloads, the others find the file
        if not path.is_file():
            _download(url, path)
    return path


def _download(url: str, path: Path) -> None:
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with (
            os.fdopen(handle, "wb") as file,
            # identity: the length that the server tells is then that of the file
            get_session().stream(
                "GET", url, headers={"Accept-Encoding": "identity"}, follow_redirects=True, timeout=30
            ) as answer,
        ):
            if answer.status_code != 200:
                raise ValueError(f"{url}: the server answered {answer.status_code}; check the address")
            check = urlparse(str(answer.url))
            if check.scheme != "https" and check.hostname not in _LOOPBACK:
                raise ValueError(f"{url}: led on to {answer.url}, which is not https://; refused")
            told = answer.headers.get("Content-Length")
            total = int(told) if told and told.isdigit() else None
            bar = tqdm(
                total=total, unit="B", unit_scale=True, desc=path.name, disable=are_progress_bars_disabled() or None
            )
            with bar:
                for piece in answer.iter_bytes(1 << 20):
                    file.write(piece)
                    bar.update(len(piece))
        size = os.path.getsize(part)
        if total is not None and size != total:
            raise ValueError(f"{url}: the connection broke off after {size:,} of {total:,} bytes; try again")
        os.chmod(part, 0o644)  # mkstemp's files are for their owner alone
        os.replace(part, path)
    except OfflineModeIsEnabled as error:
        raise ValueError(f"{url}: HF_HUB_OFFLINE is set; unset it, or name a local file") from error
    except (HTTPError, ConnectionError, TimeoutError) as error:
        raise ValueError(f"{url}: the connection failed ({first_line(error)}); check the network, try again") from error
    finally:
        Path(part).unlink(missing_ok=True)


def fill_(model: nn.Module, tensors: Mapping[str, Tensor], source: str) -> list[str]:
    """Copy the tensors into the model, all that it has; names of those that it has no place for."""
    own = model.state_dict()
    # counts of batches seen, which older files lack: only a momentum of None reads them
    missing = [n for n in own if n not in tensors and not n.endswith(".num_batches_tracked")]
    left = [n for n in tensors if n not in own]
    if missing:
        others = f"; it has {_few(left)} instead" if left else ""
        plain = all(".shortcut." in name for name in missing)  # He's own CIFAR ResNet has none with weights
        hint = "is it a resnet20_cifar_a?" if plain else "is it of another architecture?"
        raise ValueError(f"{source}: lacks {_few(missing)}{others}; {hint}")
    for name, tensor in tensors.items():
        if name in own and (have := tuple(tensor.shape)) != (want := tuple(own[name].shape)):
            raise ValueError(f"{source}: {name} is {have}, the architecture's is {want}; is it of another one?")
        if name in own and tensor.is_floating_point() != own[name].is_floating_point():
            raise ValueError(f"{source}: {name} is {tensor.dtype}, the architecture's is {own[name].dtype}")
    model.load_state_dict({n: t for n, t in tensors.items() if n in own}, strict=False)
    return left


def _few(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
