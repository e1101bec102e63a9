"""A ticket's directory or repo: which files it holds, and how they are read and replaced.

It holds config.json, the card with its chart, and, depending on the layout,

    both        ticket.safetensors, packed, and model.safetensors, the same weights with their zeros for other libraries
    packed      ticket.safetensors alone
    dense       model.safetensors alone, with the mask in its header
    mask-only   ticket.safetensors with the mask and no weights: those are the base's, at its revision
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from ..core.errors import TicketError
from ..core.files import write_atomic
from ..core.mask import Mask
from ..models.config_marks import NOT_FOR_TIMM, TICKET, WIDTHS
from ..models.remote import Source
from .mask_codec import DecodedMask
from .ticket_file import DENSE, PACKED, Contents, Unpack, pair_id, read_header, read_ticket_file, write_ticket_file

CONFIG = "config.json"
Layout = Literal["both", "packed", "dense", "mask-only"]
# {layout: {file: its `weights`}}; the packed file is written first, because the dense copy stores its pair ID
FILES_OF_LAYOUT = {
    "both": {PACKED: "packed", DENSE: "dense"},
    "packed": {PACKED: "packed"},
    "dense": {DENSE: "dense"},
    "mask-only": {PACKED: "base"},
}


@contextmanager
def naming_file(contents: Contents) -> Iterator[None]:
    """Add the file's path to a TicketError that does not name it."""
    try:
        yield
    except TicketError as error:
        if contents.path in str(error):
            raise
        raise TicketError(f"{contents.path}: {error}") from error


def mask_for(mask: Mask, model: nn.Module) -> Mask:
    """The mask without tensors whose shape differs in the model: a new head is not pruned."""
    own = dict(model.named_parameters(remove_duplicate=False))
    bits = {name: b for name, b in mask.bits.items() if name not in own or own[name].shape == b.shape}
    return Mask(bits, None if mask.excluded is None else (*mask.excluded, *(mask.bits.keys() - bits.keys())))


def no_ticket(source: Source) -> TicketError:
    return TicketError(f"{source.name}: holds no ticket: neither {PACKED} nor a {DENSE} written by hf_px")


def read_ticket(source: Source, unpack: Unpack = DecodedMask.weight) -> Contents:
    """Read the packed file, or the dense one if there is no packed file; `unpack` as in read_ticket_file."""
    packed, dense = source.file(PACKED), None
    if packed is None or source.is_dir:  # from the Hub, the dense copy is downloaded only if it is needed
        dense = source.file(DENSE)
    header = None if dense is None else read_header(dense)
    if packed is None:
        if dense is None or header is None:
            raise no_ticket(source)
        return read_ticket_file(dense)
    if dense is None or (header or {}).get("pair") == pair_id(packed):
        return read_ticket_file(packed, unpack=unpack)
    if "crc32" not in (header or {}):  # only hf_px writes checksums: transformers saved this one after training
        raise TicketError(
            f"{source.name}: {DENSE} was saved again and is no longer the same ticket as {PACKED}; "
            "remove the one that is out of date"
        )
    # both files are complete: one belongs to the old ticket, one to the new. timm and transformers read the dense one
    warnings.warn(
        f"{source.name}: {PACKED} and {DENSE} are two different tickets, as after an interrupted save; {DENSE} is "
        "loaded. Save again, or remove the other",
        stacklevel=4,
    )
    return read_ticket_file(dense)


def write_ticket(directory: Path, contents: Contents, layout: str, repo: str | None = None) -> None:
    """Write all files of a ticket; `repo` is the Hub id that they are for, if known."""
    from .card import card_files  # here: loading a ticket needs no card

    config = (
        json.dumps(config_json(contents.model, layout), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    ).encode()
    config_path = directory / CONFIG
    new_config = not config_path.is_file() or config_path.read_bytes() != config
    for leftover in directory.glob(".*.hf_px-new*"):  # of a save that was killed
        leftover.unlink(missing_ok=True)
    staged: dict[str, Path] = {}
    try:
        for name, weights in FILES_OF_LAYOUT[layout].items():
            pair = pair_id(staged[PACKED]) if layout == "both" and name == DENSE else ""
            tensors = None if weights == "base" else contents.tensors
            staged[name] = _staged_path(directory, name)
            write_ticket_file(staged[name], replace(contents, weights=weights, tensors=tensors, pair=pair))
        sizes = {name: path.stat().st_size for name, path in staged.items()}
        others = card_files(directory, contents, layout, sizes, repo) | ({CONFIG: config} if new_config else {})
        for name, data in others.items():
            staged[name] = _staged_path(directory, name)
            write_atomic(staged[name], data)
        # Only renames from here on, which need no disk space. After each step every weights file is a complete ticket,
        # old or new. Other libraries also need config.json, so it is removed first and comes back last: they never
        # see new weights with an old config.json, or the reverse
        if new_config:
            config_path.unlink(missing_ok=True)
        for name in (DENSE, PACKED):
            if name in staged:
                os.replace(staged[name], directory / name)
        for name in (DENSE, PACKED):
            if name not in staged:
                (directory / name).unlink(missing_ok=True)
        for name in others:
            os.replace(staged[name], directory / name)
    finally:
        for path in staged.values():
            path.unlink(missing_ok=True)


def _staged_path(directory: Path, name: str) -> Path:
    return directory / f".{name}.{os.getpid()}.hf_px-new"


def layout_of(directory: Path) -> Layout:
    """The layout of the ticket in a directory."""
    files = [directory / name for name in (PACKED, DENSE) if (directory / name).is_file()]
    if len(files) == 2:
        return "both"
    weights = (read_header(files[0]) or {}).get("weights") if files else None
    layouts: dict[Any, Layout] = {"packed": "packed", "dense": "dense", "base": "mask-only"}
    if weights not in layouts:
        raise TicketError(f"{directory}: holds no ticket")
    return layouts[weights]


def config_json(model: Mapping[str, Any], layout: str) -> dict[str, Any]:
    """config.json: the model's record, with marks for other libraries.

    quantization_config makes transformers call hf_px, to unpack weights and to keep the mask when it saves. A suffix of
    the architecture stops timm from loading packed files, and networks that shrink has cut, which timm cannot build.
    """
    config = dict(model)
    if layout != "mask-only":
        config["quantization_config"] = {"quant_method": TICKET, "layout": "packed" if layout == "packed" else "dense"}
    not_for_timm = layout in ("packed", "mask-only") or WIDTHS in model
    if not_for_timm and "architecture" in model and "model_type" not in model:
        config["architecture"] = f"{model['architecture']}{NOT_FOR_TIMM}"
    return config


def describe_sizes(sizes: Mapping[str, int], cut: bool = False) -> str:
    """What the weights of a ticket take on disk, {file: bytes}, and who downloads what; `cut` by shrink."""
    if len(sizes) == 1:
        ((name, size),) = sizes.items()
        readers = "with hf_px, which alone reads it" if name == PACKED or cut else "by any library"
        return f"on disk: {name} {size:,} bytes, downloaded {readers}"
    others = "which hf_px alone reads too" if cut else "downloaded by libraries without it"
    return (
        f"on disk: {PACKED} {sizes[PACKED]:,} bytes, downloaded with hf_px, and {DENSE} {sizes[DENSE]:,} bytes, "
        f"{others}; together {sum(sizes.values()):,}"
    )


def sizes_on_disk(directory: Path) -> dict[str, int]:
    """{file: bytes} of the weights of a ticket in a directory."""
    return {name: path.stat().st_size for name in (PACKED, DENSE) if (path := directory / name).is_file()}


def check_overwrite(directory: Path, layout: str) -> None:
    """Refuse to overwrite another model, or the only copy of a ticket's weights."""
    dense, packed = directory / DENSE, directory / PACKED
    if dense.is_file() and read_header(dense) is None:
        raise TicketError(f"{dense}: holds the weights of another model, which would be lost; save elsewhere")
    if (directory / CONFIG).is_file() and not dense.is_file() and not packed.is_file():
        raise TicketError(f"{directory / CONFIG}: belongs to another model, which would be lost; save elsewhere")
    if layout == "mask-only":
        headers = [read_header(path) or {} for path in (dense, packed) if path.is_file()]
        if any(header.get("weights") != "base" for header in headers):
            raise TicketError(f"{directory}: holds weights, which mask-only would remove; save elsewhere")
