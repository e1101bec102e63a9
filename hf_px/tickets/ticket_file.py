"""A ticket file: θ ⊙ M stored as its kept values and the gaps between them. Format versions 1 and 2.

This is version 1, which dense copies and older tickets have. Packed tickets are now of version 2: the same parts and
the same hf_px object, but joined in few tensors, as file_parts.py says. Both are read.

A ticket file is a safetensors file: data only, no code. All integers are little-endian; bit j of a bit stream is bit
j mod 8 (the least significant is bit 0) of byte j div 8. Weights are counted in row-major order.

Each masked tensor NAME, of shape d_1 … d_n, is stored as

    NAME:values   [kept]   its kept weights, in its own dtype; absent if the file holds masks only
    NAME:mask     uint8    the following stream

    byte 0        u8       version of the stream: 1
         1        u8       side: 1 if the stream lists the kept positions, 0 if it lists the pruned ones
         2        u8       k, at most 32
         3        u8       n, at most 16
         4        u32      CRC-32 (IEEE) of bytes 0 to 3, of all bytes from 8 on, then of NAME:values if present
         8        u64      kept
        16        u64 x n  d_1 … d_n
    then                   ⌈U/8⌉ bytes: the quotients;  ⌈count·k/8⌉ bytes: the remainders

`count` is `kept` on side 1 and Π d - kept on side 0. Positions p_0 < p_1 < … have gaps g_i = p_i - p_{i-1} - 1 with
p_{-1} = -1. Rice's code splits a gap at bit k: the quotient g_i >> k is written as that many 0 bits and a 1 bit, U bits
in all; the k low bits of g_i are bits i·k … i·k + k - 1 of the remainders, the lowest first. Unused bits of a last
byte are 0. With k = 0 the quotients are the bitmap itself. A writer takes the rarer side (the kept one if even) and the
smallest of the k that need the fewest bits, or k = 0 if that adds at most 5 % of the size of the values, because a
bitmap is read several times faster; a reader accepts any k. The gaps of a random mask are geometric, and Rice's code
is within a few per cent of their entropy. Quotients and remainders are stored apart, so that numpy decodes both as
whole arrays.

Every other tensor (biases, normalisation, buffers) is stored unchanged under its own name. The header's
`__metadata__` holds `format` = "pt" and `hf_px`, a JSON object:

    version   1
    weights   "packed": as above.  "dense": plain tensors with their zeros and no NAME:mask; `masks` is {NAME: the
              stream in base64}.  "base": masks only; the weights are those of the base model named in `ticket`
    digest    SHA-256 of the mask: for each NAME in order of code points, NAME, a 0 byte, the shape as Python prints a
              tuple, a 0 byte, and the bitmap
    crc32     eight hexadecimal digits for each NAME in order of code points: the CRC-32 of a plain tensor, or the one
              in the stream of a masked tensor
    tied      {alias: NAME}: another name of the same tensor
    aliases   the aliases that the mask also lists
    excluded  names of prunable tensors that the mask leaves out on purpose; absent in older files: unknown
    renamed   {NAME: name in the model's state_dict}, where the two differ
    pair      in a dense copy next to a packed file: SHA-256 of the packed file's crc32
    model     how to build the module: the contents of config.json when this file was written
    ticket    origin of the ticket: base, scorer, settings, results, versions
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..core.errors import TicketError
from ..core.files import write_atomic
from ..core.mask import Mask
from ..core.shareable import shareable
from .file_parts import (
    JOINED,
    MASK,
    SEPARATE,
    VALUES,
    FileParts,
    canonical_json,
    joined_chunks,
    open_parts,
    read_index,
    safetensors_chunks,
)
from .mask_codec import (
    DecodedMask,
    decode,
    encode,
    kept_values,
    mask_to_base64,
    stored_crc32,
    stream_from_base64,
    tensor_bytes,
)

Unpack = Callable[[DecodedMask, Tensor], Any]
PACKED = "ticket.safetensors"  # not model.safetensors, which libraries without hf_px would load as random weights
DENSE = "model.safetensors"
# Memory that a file may ask for: at 99.9 % sparsity tensors are a few hundred times larger than the file, not more,
# because biases and normalisation stay dense.
_ROOM, _GROWTH = 64 * 2**20, 1024


@dataclass(frozen=True)
class Contents:
    """Contents of one ticket file, with tensors under the names they have in the file."""

    weights: str  # "packed", "dense" or "base"
    tensors: dict[str, Tensor] | None  # all tensors except tied ones; None if the file holds no weights
    model: dict[str, Any]
    ticket: dict[str, Any]
    make_mask: Callable[[], Mask]  # lazy: loading the weights alone does not need the mask
    tied: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    pair: str = ""
    path: str = ""  # the file, for errors
    names: tuple[str, ...] = ()  # names of the masked tensors, known before the mask is decoded
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # here, because every header and card is made from Contents, also for tickets of older versions
        object.__setattr__(self, "ticket", shareable(self.ticket))

    @cached_property
    def mask(self) -> Mask:
        """The mask, under the names in the file."""
        return self.make_mask()

    def state_dict(self) -> dict[str, Tensor]:
        """All tensors under the model's names, tied ones included."""
        if self.tensors is None:
            return {}
        tensors = self.tensors | {alias: self.tensors[name] for alias, name in self.tied.items()}
        return {self.renamed.get(name, name): tensor for name, tensor in tensors.items()}

    def model_mask(self) -> Mask:
        """The mask under the model's names, aliases included."""
        bits = dict(self.mask.bits)
        bits |= {alias: bits[self.tied[alias]] for alias in self.aliases}
        excluded = self.mask.excluded and [self.renamed.get(name, name) for name in self.mask.excluded]
        return Mask({self.renamed.get(name, name): b for name, b in bits.items()}, excluded)


def write_ticket_file(path: str | os.PathLike[str], contents: Contents) -> None:
    """Write one ticket file atomically; equal contents give equal bytes."""
    write_atomic(path, ticket_file_chunks(contents))


def ticket_file_chunks(contents: Contents) -> Iterator[bytes]:
    """The bytes of a ticket file, in pieces."""
    mask, tensors = contents.mask, contents.tensors or {}
    stored: dict[str, Tensor] = {}
    crc32: dict[str, int] = {}
    masks: dict[str, str] = {}
    # widest dtype first, the order in which safetensors_chunks stores values, so that streams have the same order
    for name in sorted(tensors, key=lambda name: -tensors[name].element_size()) or mask.bits:
        if name.endswith((VALUES, MASK)) and contents.weights != "dense":
            raise TicketError(f"{name}: no tensor of a packed ticket may have a name that ends so; rename it")
        if name not in mask.bits or contents.weights == "dense":
            stored[name] = tensors[name]
            crc32[name] = zlib.crc32(tensor_bytes(tensors[name]).data)
            masks |= {name: mask_to_base64(mask.bits[name])} if name in mask.bits else {}
            continue
        bits, values = mask.bits[name], None
        if contents.weights == "packed":
            values = stored[name + VALUES] = kept_values(tensors[name], bits)
        stream = stored[name + MASK] = encode(bits, values)
        crc32[name] = stored_crc32(stream)
    if contents.weights == "dense":
        yield from safetensors_chunks(stored, {"format": "pt", "hf_px": header_json(contents, crc32, masks)})
    else:
        yield from joined_chunks(stored, _header(contents, crc32, masks))


def separate_chunks(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """A packed file of version 2 as one of version 1, in pieces; its masks and values are not checked."""
    path, header = Path(path), read_header(path) or {}
    with safe_open(path, framework="pt") as file:
        parts = open_parts(path, file, header)
        record = {key: value for key, value in header.items() if key != "parts"} | {"version": SEPARATE}
        stored = {name: parts.get(name) for name in parts.names}
        yield from safetensors_chunks(stored, {"format": "pt", "hf_px": canonical_json(record)})


def header_json(contents: Contents, crc32: Mapping[str, int], masks: Mapping[str, str]) -> str:
    """The `hf_px` object of a file of version 1 as JSON."""
    return canonical_json({"version": SEPARATE} | _header(contents, crc32, masks))


def _header(contents: Contents, crc32: Mapping[str, int], masks: Mapping[str, str]) -> dict[str, Any]:
    header = {
        "weights": contents.weights,
        "digest": contents.mask.digest(),
        "crc32": "".join(f"{crc32[name]:08x}" for name in sorted(crc32)),
        "masks": masks,
        "tied": contents.tied,
        "aliases": list(contents.aliases),
        "renamed": contents.renamed,
        "pair": contents.pair,
        "model": contents.model,
        "ticket": contents.ticket,
    }
    # an empty list of excluded tensors, too: files without it are of an earlier version
    left_out = {} if contents.mask.excluded is None else {"excluded": list(contents.mask.excluded)}
    return {key: value for key, value in header.items() if value} | left_out


def pair_id(path: str | os.PathLike[str]) -> str:
    """ID that links a dense copy to its packed file: SHA-256 of the packed file's checksums."""
    header = read_header(path) or {}
    return hashlib.sha256(str(header.get("crc32")).encode(errors="replace")).hexdigest()


def read_header(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The `hf_px` object of a safetensors file, its `version` included; None if it has none. Reads no weights."""
    path = Path(path)
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("hf_px")
            header = None if text is None else _parsed(path, text)
            if header is None or header["version"] == SEPARATE:
                return header
            header = read_index(path, file)
    except (SafetensorError, OSError) as error:
        raise TicketError(f"{path}: not a safetensors file, or truncated ({error})") from error
    if not isinstance(header, dict) or header.get("weights") == "dense":
        raise TicketError(f"{path}: its index is not that of a packed ticket; the file is damaged")
    return header | {"version": JOINED}


def _parsed(path: Path, text: str) -> dict[str, Any]:
    """The hf_px object in the metadata."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TicketError(f"{path}: the hf_px object in the header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise TicketError(f"{path}: hf_px in the header is not a JSON object; the file is damaged")
    if header.get("version") not in (SEPARATE, JOINED):
        version = f"{header.get('version')!r:.50}"
        raise TicketError(f"{path}: ticket format {version}, this hf_px reads {SEPARATE} and {JOINED}; upgrade hf-px")
    return header


def read_ticket_file(
    path: str | os.PathLike[str], *, weights: bool = True, unpack: Unpack = DecodedMask.weight
) -> Contents:
    """Read a ticket file and verify its checksums; a TicketError names the file and what is wrong with it.

    `weights=False` reads the masks only. `unpack` makes a packed tensor from its mask and values: θ ⊙ M by default.
    """
    path = Path(path)
    if not path.is_file():
        raise TicketError(f"{path}: there is no such file")
    header = read_header(path)
    if header is None:
        raise TicketError(f"{path}: a safetensors file, but not a ticket of hf_px")
    _check_header(path, header)
    kind = header["weights"]
    with safe_open(path, framework="pt") as file:
        parts = open_parts(path, file, header)
        names = parts.names
        masked, plain = _masked_and_plain(path, names, kind, header["masks"])
        streams, tensors, crc32 = _read_masked(path, parts, masked, header, unpack if weights else None)
        if weights or header.get("crc32") is not None:  # also the dense copy: transformers checks no checksums
            for name in plain:
                with _named(path, name):
                    tensors[name] = parts.get(name)
                    crc32[name] = zlib.crc32(tensor_bytes(tensors[name]).data)
            _check_crc32(path, crc32, header.get("crc32"), may_be_absent=kind == "dense")
    _check_tied(path, header, {*masked, *plain}, streams)

    def make_mask() -> Mask:
        bits = {name: decode(stream, limit=2**63, check=False).bits() for name, stream in streams.items()}
        mask = Mask(bits, header["excluded"])
        if mask.digest() != header.get("digest"):
            raise TicketError(f"{path}: the digest of the mask is not the one in the header; the file is damaged")
        return mask

    order = names if kind == "dense" else [n.removesuffix(VALUES) for n in names if not n.endswith(MASK)]
    return Contents(
        weights=kind,
        tensors={name: tensors[name] for name in order} if weights and kind != "base" else None,
        model=header["model"],
        ticket=header["ticket"],
        make_mask=make_mask,
        tied=header["tied"],
        renamed=header["renamed"],
        pair=str(header.get("pair", "")),
        path=str(path),
        names=tuple(masked),
        aliases=tuple(header["aliases"]),
    )


def _check_header(path: Path, header: dict[str, Any]) -> None:
    """Check the types of the header's entries, and add those that are absent because they are empty."""
    kind = header.get("weights")
    if kind not in ("packed", "dense", "base"):
        raise TicketError(f"{path}: weights {kind!r:.50} are neither packed, dense nor base; the file is damaged")
    for key in ("model", "ticket", "tied", "renamed", "masks"):
        value = header.setdefault(key, {})
        if not isinstance(value, dict):
            raise TicketError(f"{path}: {key} in the header is not an object; the file is damaged")
        if key in ("tied", "renamed", "masks") and not all(isinstance(text, str) for text in value.values()):
            raise TicketError(f"{path}: {key} in the header does not hold strings; the file is damaged")
    header.setdefault("aliases", [])
    excluded = [] if header.setdefault("excluded", None) is None else header["excluded"]
    if not isinstance(excluded, list) or not all(isinstance(name, str) for name in excluded):
        raise TicketError(f"{path}: excluded in the header is not a list of names; the file is damaged")


def _read_masked(
    path: Path, parts: FileParts, masked: list[str], header: Mapping[str, Any], unpack: Unpack | None
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, int]]:
    """({name: stream}, {name: θ ⊙ M}, {name: checksum}) of the masked tensors."""
    kind = header["weights"]
    streams: dict[str, Tensor] = {}
    tensors: dict[str, Tensor] = {}
    crc32: dict[str, int] = {}
    left = _ROOM + _GROWTH * path.stat().st_size  # bytes that all tensors of this file together may take
    for name in masked:
        with _named(path, name):
            stream = stream_from_base64(header["masks"][name]) if kind == "dense" else parts.get(name + MASK)
            values = parts.get(name + VALUES) if kind == "packed" else None
            streams[name] = stream
            width = 1 + (values.element_size() if values is not None else 0)
            decoded = decode(stream, values, limit=left // width)
            left -= math.prod(decoded.shape) * width
            if kind == "dense" and parts.shape(name) != list(decoded.shape):
                raise TicketError(f"its mask has shape {decoded.shape}; the file is damaged")
            crc32[name] = decoded.crc32
            if values is not None and unpack is not None:
                tensors[name] = unpack(decoded, values)
    return streams, tensors, crc32


def _check_tied(path: Path, header: Mapping[str, Any], names: set[str], masked: Mapping[str, Tensor]) -> None:
    tied, aliases = header["tied"], header["aliases"]
    for alias, name in tied.items():
        if name not in names:
            raise TicketError(f"{path}: {alias} is tied to {name}, which is missing; the file is damaged")
        if alias in names:
            raise TicketError(f"{path}: {alias} is stored, but also tied to {name}; the file is damaged")
    if not isinstance(aliases, list) or not all(
        isinstance(alias, str) and tied.get(alias) in masked for alias in aliases
    ):
        raise TicketError(f"{path}: aliases in the header are not tied to masked tensors; the file is damaged")


@contextmanager
def _named(path: Path, name: str) -> Iterator[None]:
    """Add the file and the tensor to a TicketError."""
    try:
        yield
    except TicketError as error:
        raise TicketError(f"{path}: {name}: {error}") from error


def _masked_and_plain(path: Path, names: list[str], weights: str, masks: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(masked tensors, plain tensors); raises if a masked tensor lacks a part."""
    if weights == "dense":
        for name in sorted(masks.keys() - set(names)):
            raise TicketError(f"{path}: {name} has a mask but no weights; the file is damaged")
        return [name for name in names if name in masks], names
    streams = [name.removesuffix(MASK) for name in names if name.endswith(MASK)]
    values = {name.removesuffix(VALUES) for name in names if name.endswith(VALUES)}
    plain = [name for name in names if not name.endswith((MASK, VALUES))]
    odd = sorted((values.symmetric_difference(streams) if weights == "packed" else values) | set(plain) & set(streams))
    if odd:
        raise TicketError(f"{path}: {odd[0]} lacks its mask or its values, or is stored twice; the file is damaged")
    return streams, plain


def _check_crc32(path: Path, computed: Mapping[str, int], stored: Any, may_be_absent: bool) -> None:
    if stored is None and (may_be_absent or not computed):  # transformers saves no checksums; or the file is empty
        return
    if not isinstance(stored, str) or len(stored) != 8 * len(computed):
        raise TicketError(f"{path}: {len(computed)} tensors, but another number of checksums; the file is damaged")
    for i, name in enumerate(sorted(computed)):
        if f"{computed[name]:08x}" != stored[8 * i : 8 * i + 8]:
            raise TicketError(f"{path}: {name}: the checksum does not match; the file is damaged")
