"""verify: everything that a ticket claims, checked against what it holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ..core.errors import TicketError
from ..keep_zeros import violations
from ..models import architecture
from ..models.remote import Source
from . import ticket_file
from .directory import config_json
from .mask_codec import raw
from .ticket_file import DENSE, PACKED, Contents


def verify(source: Source) -> Iterator[str]:
    """One line for each thing that holds; a TicketError at the first that does not."""
    found = {name: path for name in (PACKED, DENSE) if (path := source.file(name)) is not None}
    read: dict[str, Contents] = {}
    for name, path in found.items():
        if name == DENSE and ticket_file.told_by(path) is None:
            if len(found) == 1:
                break
            raise TicketError(f"{path}: not the dense copy of this ticket; it was saved by something else")
        read[name] = ticket_file.read(path)
        yield f"{name}: {path.stat().st_size:,} bytes, every checksum right"
    if not read:
        raise TicketError(f"{source.name}: holds no ticket: neither {PACKED} nor a {DENSE} of hf_px's")
    for name, contents in read.items():
        yield from _one(name, contents)
    if len(read) == 2:
        if read[DENSE].pair != ticket_file.pair(found[PACKED]):
            raise TicketError(f"{found[DENSE]}: saved anew since {PACKED} was; remove the one that is out of date")
        _same(read[PACKED], read[DENSE])
        yield "the dense copy is the packed ticket, bit for bit"
    config = source.file("config.json")
    if config is None:
        raise TicketError(f"{source.name}: has no config.json, by which other readers know the model")
    try:
        says = json.loads(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TicketError(f"{config}: not JSON ({error})") from error
    contents = next(iter(read.values()))
    layout = "both" if len(read) == 2 else {"base": "mask-only"}.get(contents.weights, contents.weights)
    if _without_mark(says) != _without_mark(config_json(contents.model, layout)):
        raise TicketError(f"{config}: not what the ticket says of its model; was it edited?")
    yield "config.json: as in the ticket"


def _without_mark(config: Any) -> Any:
    """But for the mark by which transformers calls on hf_px, which it rewrites."""
    return {k: v for k, v in config.items() if k != "quantization_config"} if isinstance(config, dict) else config


def _one(name: str, contents: Contents) -> Iterator[str]:
    mask = contents.mask  # checks its digest
    yield f"{name}: mask {mask.digest()[:16]}…, {mask.kept:,} of {mask.total:,} kept"
    told = contents.ticket.get("sparsity", {})
    if isinstance(told, dict) and told and (told.get("kept"), told.get("total")) != (mask.kept, mask.total):
        raise TicketError(f"{name}: says {told.get('kept')} of {told.get('total')} kept; the mask is another")
    if contents.tensors is None:
        yield f"{name}: no weights; those of {contents.ticket.get('base')} are not fetched for this"
        return
    for key, tensor in contents.tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.float()).all()):
            raise TicketError(f"{name}: {key}: holds inf or nan")
    yield f"{name}: {len(contents.tensors)} tensors, all values finite"
    for key, count in violations(contents.tensors, mask).items():
        raise TicketError(f"{name}: {key}: {count:,} pruned weights are not zero")
    yield f"{name}: zeros where the mask says"
    if "custom" not in contents.model:
        architecture.new_head(contents.model, contents.state_dict(), None)
        yield f"{name}: fits its architecture"


def _same(packed: Contents, dense: Contents) -> None:
    one, other = packed.tensors or {}, dense.tensors or {}
    if odd := sorted(one.keys() ^ other.keys()):
        raise TicketError(f"{odd[0]}: in only one of {PACKED} and {DENSE}")
    for name, tensor in one.items():
        if tensor.dtype != other[name].dtype or not np.array_equal(raw(tensor), raw(other[name])):
            raise TicketError(f"{name}: differs between {PACKED} and {DENSE}")
    if packed.mask != dense.mask:
        raise TicketError(f"the masks of {PACKED} and {DENSE} differ")
