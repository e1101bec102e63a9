"""A ticket's home, a directory or a repo: which files it holds, and how they are read and replaced.

It holds config.json (in the Hub's own words), a card with its picture, and, by layout,

    both        ticket.safetensors, packed, and model.safetensors, the same weights with their zeros for other readers
    packed      ticket.safetensors alone
    dense       model.safetensors alone, its mask in the header
    mask-only   ticket.safetensors with the mask and no weights: those of the base, at its revision
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ..core.errors import TicketError
from ..core.files import write_atomic
from ..models.config_marks import NOT_FOR_TIMM
from ..models.remote import Source
from . import card, ticket_file
from .ticket_file import DENSE, PACKED, Contents

CONFIG = "config.json"
Layout = Literal["both", "packed", "dense", "mask-only"]
# {file: what its `weights` are}; a pair is written in this order
KIND = {
    "both": {PACKED: "packed", DENSE: "dense"},
    "packed": {PACKED: "packed"},
    "dense": {DENSE: "dense"},
    "mask-only": {PACKED: "base"},
}


def read(source: Source) -> Contents:
    """What the ticket there says: its packed file, or else the dense one."""
    packed, dense = source.file(PACKED), None
    if packed is None or source.is_dir:  # on the Hub the dense copy is not fetched where it is not needed
        dense = source.file(DENSE)
    told = None if dense is None else ticket_file.told_by(dense)
    if packed is None:
        if dense is None or told is None:
            raise TicketError(f"{source.name}: holds no ticket: neither {PACKED} nor a {DENSE} of hf_px's")
        return ticket_file.read(dense)
    if dense is None or (told or {}).get("pair") == ticket_file.pair(packed):
        return ticket_file.read(packed)
    if "crc32" not in (told or {}):  # which transformers does not write: trained on and saved by it
        raise TicketError(
            f"{source.name}: {DENSE} has been saved anew and is no longer the same ticket as {PACKED}; "
            "remove the one that is out of date"
        )
    # both are whole, one of the old ticket and one of the new; timm and transformers read this one
    warnings.warn(
        f"{source.name}: {PACKED} and {DENSE} are two tickets, as when a save was interrupted; {DENSE} is the one "
        "that is read. Save again, or remove the other",
        stacklevel=4,
    )
    return ticket_file.read(dense)


def write(directory: Path, contents: Contents, layout: str, repo: str | None = None) -> None:
    """All files of a ticket; `repo` is where they will go, if that is known."""
    config = (
        json.dumps(config_json(contents.model, layout), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    ).encode()
    where = directory / CONFIG
    moved = not where.is_file() or where.read_bytes() != config
    for left in directory.glob(".*.hf_px-new*"):  # by a save that was killed
        left.unlink(missing_ok=True)
    beside: dict[str, Path] = {}
    try:
        for name, kind in KIND[layout].items():
            pair = ticket_file.pair(beside[PACKED]) if layout == "both" and name == DENSE else ""
            tensors = None if kind == "base" else contents.tensors
            beside[name] = _beside(directory, name)
            ticket_file.write(beside[name], replace(contents, weights=kind, tensors=tensors, pair=pair))
        sizes = {name: path.stat().st_size for name, path in beside.items()}
        texts = card.files(directory, contents, layout, sizes, repo) | ({CONFIG: config} if moved else {})
        for name, text in texts.items():
            beside[name] = _beside(directory, name)
            write_atomic(beside[name], text)
        # from here on nothing needs space on the disk. At each step every weights file is a whole ticket of hf_px's,
        # old or new; others need config.json too: none sees new weights under an old one or the other way
        if moved:
            where.unlink(missing_ok=True)
        for name in (DENSE, PACKED):
            if name in beside:
                os.replace(beside[name], directory / name)
        for name in (DENSE, PACKED):
            if name not in beside:
                (directory / name).unlink(missing_ok=True)
        for name in texts:  # config.json last
            os.replace(beside[name], directory / name)
    finally:
        for path in beside.values():
            path.unlink(missing_ok=True)


def _beside(directory: Path, name: str) -> Path:
    return directory / f".{name}.{os.getpid()}.hf_px-new"


def config_json(model: Mapping[str, Any], layout: str) -> dict[str, Any]:
    """The record and marks: by one transformers calls on hf_px, to unpack or to keep the mask when it saves; by another
    timm refuses what is not for it.
    """
    marked = dict(model)
    if layout != "mask-only":
        by = {"quant_method": "hf_px", "layout": "packed" if layout == "packed" else "dense"}
        marked["quantization_config"] = by
    if layout in ("packed", "mask-only") and "architecture" in model and "model_type" not in model:
        marked["architecture"] = f"{model['architecture']}{NOT_FOR_TIMM}"
    return marked


def check(directory: Path, layout: str) -> None:
    """Nothing that is there may be lost: another model, or the only copy of a ticket's weights."""
    dense, packed = directory / DENSE, directory / PACKED
    if dense.is_file() and ticket_file.told_by(dense) is None:
        raise TicketError(f"{dense}: holds the weights of another model, which would be lost; save elsewhere")
    if (directory / CONFIG).is_file() and not dense.is_file() and not packed.is_file():
        raise TicketError(f"{directory / CONFIG}: belongs to another model, which would be lost; save elsewhere")
    if layout == "mask-only":
        told = [ticket_file.told_by(path) or {} for path in (dense, packed) if path.is_file()]
        if any(one.get("weights") != "base" for one in told):
            raise TicketError(f"{directory}: holds weights, which mask-only would remove; save elsewhere")
