"""A mask on disk: one safetensors file of 0/1 bytes, with the mask's digest in its metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ..core.files import write_atomic
from ..core.mask import Mask
from .file_parts import safetensors_chunks

FORMAT = "1"
# metadata keys of save_mask itself: format version, digest of the mask, tensors left out on purpose (a JSON list)
_OWN = ("hf_px_mask", "digest", "excluded")


def save_mask(mask: Mask, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
    """Write the mask and its metadata (strings); an older file at `path` is replaced atomically."""
    metadata = dict(metadata or {})
    for key, value in metadata.items():
        if key in _OWN:
            raise ValueError(f"metadata {key!r} is written by save_mask itself; choose another name")
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata {key!r} is a {type(value).__name__}; safetensors stores strings only")
    # uint8, not bool: a damaged byte such as 7 can then be detected, while a bool would read it as True
    bits = {name: b.detach().to("cpu", torch.uint8).contiguous() for name, b in mask.bits.items()}
    own = {"hf_px_mask": FORMAT, "digest": mask.digest()}
    own |= {} if mask.excluded is None else {"excluded": json.dumps(mask.excluded)}
    write_atomic(path, safetensors_chunks(bits, {**metadata, **own}))


def load_mask(path: str | os.PathLike[str]) -> tuple[Mask, dict[str, str]]:
    """Read (mask, metadata); a ValueError names the file if it is damaged or not a mask."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; expected a mask written by save_mask")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            names = file.keys()  # safe_open is not iterable
            tensors = {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ValueError(f"{path}: not a safetensors file, or truncated ({error})") from error
    version = metadata.pop("hf_px_mask", None)
    if version is None:
        raise ValueError(f"{path}: a safetensors file, but not a mask of hf_px; does it hold weights?")
    if version != FORMAT:
        raise ValueError(f"{path}: mask format {version}, this hf_px reads {FORMAT}; upgrade hf-px")
    for name, bits in tensors.items():
        if bits.dtype is not torch.uint8:
            raise ValueError(f"{path}: {name} is {bits.dtype}, a mask is stored as uint8; was the file edited?")
        if bits.numel() and int(bits.max()) > 1:
            raise ValueError(f"{path}: {name} holds {int(bits.max())}, a mask holds 0 and 1; the file is damaged")
    try:
        excluded = json.loads(metadata.pop("excluded", "null"))
        mask = Mask({name: bits.bool() for name, bits in tensors.items()}, excluded)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: excluded in the metadata is not a list of names; the file is damaged") from error
    if mask.digest() != metadata.pop("digest", None):
        raise ValueError(f"{path}: the digest of the mask is not the one in the metadata; the file is damaged")
    return mask, metadata
