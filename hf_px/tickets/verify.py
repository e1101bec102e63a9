"""verify(source): check everything that a ticket claims against its files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ..core.errors import TicketError
from ..core.text import name_list
from ..models import architecture
from ..models.remote import Source
from ..sparse_training import violations
from .directory import config_json, no_ticket
from .mask_codec import tensor_bytes
from .stored_dtype import check_stored
from .ticket_file import DENSE, PACKED, Contents, pair_id, read_header, read_ticket_file


def verify(source: Source) -> Iterator[str]:
    """Yield one line for each check that passes; raise TicketError at the first that fails."""
    paths = {name: path for name in (PACKED, DENSE) if (path := source.file(name)) is not None}
    files: dict[str, Contents] = {}
    for name, path in paths.items():
        if name == DENSE and read_header(path) is None:
            if len(paths) == 1:
                break
            raise TicketError(f"{path}: not the dense copy of this ticket; it was saved by another library")
        files[name] = read_ticket_file(path)
        yield f"{name}: {path.stat().st_size:,} bytes, all checksums match"
    if not files:
        raise no_ticket(source)
    for name, contents in files.items():
        yield from _verify_file(name, contents)
    if len(files) == 2:
        if files[DENSE].pair != pair_id(paths[PACKED]):
            raise TicketError(f"{paths[DENSE]}: saved again after {PACKED}; remove the one that is out of date")
        _verify_same(files[PACKED], files[DENSE])
        yield "the dense copy equals the packed ticket, bit for bit"
    config_path = source.file("config.json")
    if config_path is None:
        raise TicketError(f"{source.name}: has no config.json, which timm and transformers need")
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TicketError(f"{config_path}: not JSON ({error})") from error
    contents = next(iter(files.values()))
    layout = "both" if len(files) == 2 else {"base": "mask-only"}.get(contents.weights, contents.weights)
    if _without_mark(config) != _without_mark(config_json(contents.model, layout)):
        raise TicketError(f"{config_path}: differs from the model record in the ticket; was it edited?")
    yield "config.json: as in the ticket"


def _without_mark(config: Any) -> Any:
    """The config without quantization_config, which transformers rewrites when it saves."""
    return {k: v for k, v in config.items() if k != "quantization_config"} if isinstance(config, dict) else config


def _verify_file(name: str, contents: Contents) -> Iterator[str]:
    mask = contents.mask  # decoding it checks its digest
    yield f"{name}: mask {mask.digest()[:16]}…, {mask.kept:,} of {mask.total:,} kept"
    recorded = contents.ticket.get("sparsity", {})
    if isinstance(recorded, dict) and recorded:
        kept, total = recorded.get("kept"), recorded.get("total")
        if (kept, total) != (mask.kept, mask.total):
            raise TicketError(f"{name}: records {kept} of {total} kept; the mask keeps {mask.kept} of {mask.total}")
    if contents.tensors is None:
        yield f"{name}: no weights; those of {contents.ticket.get('base')} are not downloaded for this check"
        return
    for key, tensor in contents.tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.float()).all()):
            raise TicketError(f"{name}: {key}: holds inf or nan")
    yield f"{name}: {len(contents.tensors)} tensors, all values finite"
    try:
        line = check_stored(contents)
    except TicketError as error:
        raise TicketError(f"{name}: {error}") from error
    if line is not None:
        yield f"{name}: {line}"
    for key, count in violations(contents.tensors, mask).items():
        raise TicketError(f"{name}: {key}: {count:,} pruned weights are not zero")
    yield f"{name}: all pruned weights are zero"
    if "custom" not in contents.model:
        architecture.new_head(contents.model, contents.state_dict(), None)
        yield f"{name}: fits its architecture"
        yield from _verify_cover(name, contents)


def _verify_cover(name: str, contents: Contents) -> Iterator[str]:
    """The mask names every prunable tensor, or leaves it out on purpose; the recorded sparsity counts those, too."""
    mask, model = contents.model_mask(), architecture.on_meta(contents.model, tensors=len(contents.state_dict()))
    try:
        mask.check_covers(model)
    except ValueError as error:
        raise TicketError(f"{name}: {error}") from error
    left_out = mask.left_out(model)
    recorded, outside = contents.ticket.get("sparsity"), sum(tensor.numel() for tensor in left_out.values())
    if mask.excluded is not None and isinstance(recorded, dict) and recorded.get("outside", 0) != outside:
        raise TicketError(f"{name}: records {recorded.get('outside', 0)} weights outside the mask; there are {outside}")
    if left_out:
        yield f"{name}: not in the mask, so dense: {name_list(left_out)}, {outside:,} weights"
    else:
        yield f"{name}: the mask names every prunable tensor"


def _verify_same(packed: Contents, dense: Contents) -> None:
    first, second = packed.tensors or {}, dense.tensors or {}
    if odd := sorted(first.keys() ^ second.keys()):
        raise TicketError(f"{odd[0]}: in only one of {PACKED} and {DENSE}")
    for name, tensor in first.items():
        other = second[name]
        if tensor.dtype != other.dtype or not np.array_equal(tensor_bytes(tensor), tensor_bytes(other)):
            raise TicketError(f"{name}: differs between {PACKED} and {DENSE}")
    if packed.mask != dense.mask:
        raise TicketError(f"the masks of {PACKED} and {DENSE} differ")
