"""Packed tensors: θ ⊙ M as its kept values and the gaps between them. Format version 1.

A ticket file is a safetensors file, data only. All integers are little-endian; bit j of a bit stream is bit j mod 8
(the least significant is bit 0) of byte j div 8. Weights are counted in row-major order.

Each masked tensor NAME, of shape d_1 … d_n, is stored as

    NAME:values   [kept]   its kept weights, in its own dtype; absent where a file holds masks only
    NAME:mask     uint8    the stream below

    byte 0        u8       version of the stream: 1
         1        u8       side: 1 if the positions below are the kept ones, 0 if they are the pruned ones
         2        u8       k, at most 32
         3        u8       n, at most 16
         4        u32      CRC-32 (IEEE) of bytes 0 to 3, of all that follows, then of the bytes of NAME:values if there
         8        u64      kept
        16        u64 x n  d_1 … d_n
    then                   ⌈U/8⌉ bytes: the quotients;  ⌈count·k/8⌉ bytes: the remainders

`count` is `kept` on side 1 and Π d - kept on side 0. Positions p_0 < p_1 < … have gaps g_i = p_i - p_{i-1} - 1 with
p_{-1} = -1. Rice's code splits a gap at bit k: the quotient g_i >> k is written as that many 0 bits and a 1 bit, U bits
in all; the k low bits of g_i are bits i·k … i·k + k - 1 of the remainders, the lowest first. Unused bits of a last
byte are 0. With k = 0 the quotients are the bitmap itself. A writer takes the rarer side (the kept one if even) and the
smallest of the k that need the fewest bits, or k = 0 where that costs at most 5 % of the values more, since a bitmap is
read several times faster; a reader need not care. Gaps of a random mask are geometric, for which
Rice's code is within a few per cent of the entropy; the two parts apart, not interleaved, can be read by whole arrays.

Every other tensor (biases, normalisation, buffers) is stored as it is, under its own name. The header's
`__metadata__` holds `format` = "pt" and `hf_px`, a JSON object:

    version   1
    weights   "packed": as above.  "dense": this file holds plain tensors with their zeros, and no NAME:mask; `masks`
              is {NAME: the stream in base64}.  "base": masks only; the weights are those of the model named in `ticket`
    digest    SHA-256 of the mask: for each NAME in order of code points, NAME, a 0 byte, the shape as Python prints a
              tuple, a 0 byte, and the bitmap
    crc32     eight hexadecimal digits for each NAME in order of code points: of a plain tensor its CRC-32, of a masked
              one that in its stream
    tied      {alias: NAME}: another name of the same tensor
    aliases   those of them that the mask names too
    renamed   {NAME: name in the model's own state_dict}, where the two differ
    pair      in the dense copy that lies beside a packed file: SHA-256 of that file's crc32
    model     how to build the module: what config.json says, as it was when this file was written
    ticket    where the ticket comes from
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..core.errors import TicketError
from ..core.files import write_atomic
from ..core.mask import Mask
from ..core.shareable import shareable
from .mask_codec import VERSION, crc32_of, decode, encode, kept_values, raw

PACKED = "ticket.safetensors"  # not model.safetensors: a reader without hf_px would take it for random weights
DENSE = "model.safetensors"
VALUES, MASK = ":values", ":mask"
# what a file may grow to in memory: a few hundred times at 99.9 %, since biases and normalisation stay; not without end
_ROOM, _GROWTH = 64 * 2**20, 1024
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Contents:
    """What one ticket file says."""

    weights: str  # "packed", "dense" or "base"
    tensors: dict[str, Tensor] | None  # the whole state but for tied names, by the names of the file; None: not here
    model: dict[str, Any]
    ticket: dict[str, Any]
    make_mask: Callable[[], Mask]  # put off: who wants the weights alone does not pay for it
    tied: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    pair: str = ""
    path: str = ""  # the file that says it; an error names it
    names: tuple[str, ...] = ()  # of the masked tensors, where the mask itself is put off
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # every header and card is made from here, also those of a ticket that an older version wrote
        object.__setattr__(self, "ticket", shareable(self.ticket))

    @cached_property
    def mask(self) -> Mask:
        """By the names of the file."""
        return self.make_mask()

    def state_dict(self) -> dict[str, Tensor]:
        """By the model's own names, tied ones included."""
        if self.tensors is None:
            return {}
        tensors = self.tensors
        whole = tensors | {alias: tensors[name] for alias, name in self.tied.items()}
        return {self.renamed.get(name, name): tensor for name, tensor in whole.items()}

    def masked(self) -> list[str]:
        """The masked tensors, by the model's own names."""
        return [self.renamed.get(name, name) for name in self.names]

    def own_mask(self) -> Mask:
        """By the model's own names, as the mask was given."""
        bits = dict(self.mask.bits)
        bits |= {alias: bits[self.tied[alias]] for alias in self.aliases}
        return Mask({self.renamed.get(name, name): b for name, b in bits.items()})


def write(path: str | os.PathLike[str], contents: Contents) -> None:
    """One ticket file, whole or not at all; equal contents give equal bytes."""
    write_atomic(path, chunks(contents))


def chunks(contents: Contents) -> Iterator[bytes]:
    """The bytes of a ticket file, piece by piece."""
    mask, tensors = contents.mask, contents.tensors or {}
    stored: dict[str, Tensor] = {}
    crc32: dict[str, int] = {}
    masks: dict[str, str] = {}
    # by width as the values will lie, so that the streams are in the order in which a reader finds the tensors
    for name in sorted(tensors, key=lambda name: -tensors[name].element_size()) or mask.bits:
        if name not in mask.bits or contents.weights == "dense":
            stored[name] = tensors[name]
            crc32[name] = zlib.crc32(raw(tensors[name]).data)
            masks |= {name: text_of(mask.bits[name])} if name in mask.bits else {}
            continue
        bits, values = mask.bits[name], None
        if contents.weights == "packed":
            values = stored[name + VALUES] = kept_values(tensors[name], bits)
        stream = stored[name + MASK] = encode(bits, values)
        crc32[name] = crc32_of(stream)
    yield from safetensors_chunks(stored, {"format": "pt", "hf_px": header(contents, crc32, masks)})


def header(contents: Contents, crc32: Mapping[str, int], masks: Mapping[str, str]) -> str:
    """The `hf_px` object, as text."""
    told = {
        "version": VERSION,
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
    return as_json({key: value for key, value in told.items() if value})


def pair(path: str | os.PathLike[str]) -> str:
    """Of a packed file: by which its dense copy is known."""
    told = told_by(path) or {}
    return hashlib.sha256(str(told.get("crc32")).encode(errors="replace")).hexdigest()


def text_of(bits: Tensor) -> str:
    """The stream of a mask in base64, as the header of a dense copy holds it."""
    return base64.b64encode(raw(encode(bits)).tobytes()).decode()


def as_json(value: Any) -> str:
    """Short, and the same for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def safetensors_chunks(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes]:
    """A safetensors file, piece by piece. Not safetensors.save: that writes metadata in a new order every time."""
    # wide types first, so that each tensor starts at a multiple of its width; else as they come, from input to output
    names = sorted(tensors, key=lambda name: -tensors[name].element_size())
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    end = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in _DTYPES:
            raise TicketError(f"{name}: {tensor.dtype} has no place in a safetensors file; convert it first")
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for name in names:
        yield raw(tensors[name]).tobytes()


def bound(contents: Contents) -> int:
    """Bytes that no coding of random masks beats: stored values at their own width, and Σ n·H(kept/n) bits."""
    tensors, bits = contents.tensors or {}, contents.mask.bits
    whole = sum(t.numel() * t.element_size() for name, t in tensors.items() if name not in bits)
    parts = [(int(b.sum()), b.numel(), tensors[name].element_size()) for name, b in bits.items()]
    return math.ceil(whole + sum(kept * width + n * _entropy(kept, n) / 8 for kept, n, width in parts))


def _entropy(kept: int, total: int) -> float:
    """H(p) = -p log₂ p - (1 - p) log₂ (1 - p), in bits, for p = kept / total."""
    shares = [count / total for count in (kept, total - kept) if 0 < count < total]
    return -sum(p * math.log2(p) for p in shares)


def told_by(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The `hf_px` object in a safetensors file's header; None if it has none. No tensor is read."""
    path = Path(path)
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("hf_px")
    except (SafetensorError, OSError) as error:
        raise TicketError(f"{path}: not a safetensors file, or cut short ({error})") from error
    if text is None:
        return None
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TicketError(f"{path}: the hf_px record in the header is not JSON ({error})") from error
    if not isinstance(told, dict):
        raise TicketError(f"{path}: the hf_px record in the header is not an object; the file is damaged")
    if told.get("version") != VERSION:
        version = f"{told.get('version')!r:.50}"
        raise TicketError(f"{path}: ticket format {version}, this hf_px reads {VERSION}; upgrade hf-px")
    return told


def read(path: str | os.PathLike[str], *, weights: bool = True) -> Contents:
    """Read a ticket file and check it against its own checksums; every fault is a TicketError that names it.

    `weights=False` leaves the weights where they are.
    """
    path = Path(path)
    if not path.is_file():
        raise TicketError(f"{path}: there is no such file")
    told = told_by(path)
    if told is None:
        raise TicketError(f"{path}: a safetensors file, but not a ticket of hf_px")
    kind = told.get("weights")
    if kind not in ("packed", "dense", "base"):
        raise TicketError(f"{path}: weights {kind!r:.50} are neither packed, dense nor base; the file is damaged")
    objects = {key: told.get(key, {}) for key in ("model", "ticket", "tied", "renamed", "masks")}
    for key, value in objects.items():
        if not isinstance(value, dict):
            raise TicketError(f"{path}: {key} in the header is not an object; the file is damaged")
        if key in ("tied", "renamed", "masks") and not all(isinstance(text, str) for text in value.values()):
            raise TicketError(f"{path}: {key} in the header does not hold text; the file is damaged")
    with safe_open(path, framework="pt") as file:
        names = _in_order(path, file.keys())
        masked, plain = _sorted_out(path, names, kind, objects["masks"])
        streams: dict[str, Tensor] = {}
        tensors: dict[str, Tensor] = {}
        crc32: dict[str, int] = {}
        left = _ROOM + _GROWTH * path.stat().st_size  # what this file may ask for, all its tensors together
        for name in masked:
            with _blame(path, name):
                stream = _from_base64(objects["masks"][name]) if kind == "dense" else _tensor(file, name + MASK)
                values = _tensor(file, name + VALUES) if kind == "packed" else None
                streams[name] = stream
                width = 1 + (values.element_size() if values is not None else 0)
                found = decode(stream, values, limit=left // width)
                left -= math.prod(found.shape) * width
                if kind == "dense" and file.get_slice(name).get_shape() != list(found.shape):
                    raise TicketError(f"its mask is of shape {found.shape}; the file is damaged")
                crc32[name] = found.crc32
                if values is not None and weights:
                    tensors[name] = found.weight(values)
        if weights or told.get("crc32") is not None:  # the dense copy is checked too: transformers would not
            for name in plain:
                with _blame(path, name):
                    tensors[name] = _tensor(file, name)
                    crc32[name] = zlib.crc32(raw(tensors[name]).data)
            _check(path, crc32, told.get("crc32"), may_be_absent=kind == "dense")
    order = names if kind == "dense" else [n.removesuffix(VALUES) for n in names if not n.endswith(MASK)]
    there = {*masked, *plain}
    for alias, name in objects["tied"].items():
        if name not in there:
            raise TicketError(f"{path}: {alias} is tied to {name}, which is not there; the file is damaged")
        if alias in there:
            raise TicketError(f"{path}: {alias} is there, and tied to {name} as well; the file is damaged")

    aliases = told.get("aliases", [])
    if not isinstance(aliases, list) or not all(
        isinstance(alias, str) and objects["tied"].get(alias) in streams for alias in aliases
    ):
        raise TicketError(f"{path}: aliases in the header are not tied to masked tensors; the file is damaged")

    def mask() -> Mask:
        mask = Mask({name: decode(stream, limit=2**63, check=False).bits() for name, stream in streams.items()})
        if mask.digest() != told.get("digest"):
            raise TicketError(f"{path}: the mask does not have the digest that it was saved with; the file is damaged")
        return mask

    return Contents(
        kind,
        {name: tensors[name] for name in order} if weights and kind != "base" else None,
        objects["model"],
        objects["ticket"],
        mask,
        objects["tied"],
        objects["renamed"],
        str(told.get("pair", "")),
        str(path),
        tuple(masked),
        tuple(aliases),
    )


def _tensor(file: Any, name: str) -> Tensor:
    kind = file.get_slice(name).get_dtype()
    if kind not in _DTYPES.values():  # safetensors has more, of which some have no place in torch
        raise TicketError(f"{kind} is no type of weights; the file is damaged, or of a later hf_px")
    return file.get_tensor(name)


def _in_order(path: Path, names: list[str]) -> list[str]:
    """As the header lists them, which is the model's order. Not by offset: where a layer is all pruned its values are
    empty, several lie at one offset, and safetensors gives those in a new order every time."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        listed = json.loads(file.read(length))  # safetensors has read it already: it is JSON, and not too long
    place = {name: i for i, name in enumerate(listed)}
    return sorted(names, key=lambda name: place.get(name, -1))


@contextmanager
def _blame(path: Path, name: str) -> Iterator[None]:
    try:
        yield
    except TicketError as error:
        raise TicketError(f"{path}: {name}: {error}") from error


def _sorted_out(path: Path, names: list[str], weights: str, masks: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(masked tensors, plain ones); each masked one has all its parts, and each part its place."""
    if weights == "dense":
        for name in sorted(masks.keys() - set(names)):
            raise TicketError(f"{path}: {name} has a mask but no weights; the file is damaged")
        return [name for name in names if name in masks], names
    streams = [name.removesuffix(MASK) for name in names if name.endswith(MASK)]
    values = {name.removesuffix(VALUES) for name in names if name.endswith(VALUES)}
    plain = [name for name in names if not name.endswith((MASK, VALUES))]
    odd = sorted((values.symmetric_difference(streams) if weights == "packed" else values) | set(plain) & set(streams))
    if odd:
        raise TicketError(f"{path}: {odd[0]} lacks its mask or its values, or has too many; the file is damaged")
    return streams, plain


def _from_base64(text: Any) -> Tensor:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise TicketError(f"the mask in the header is not base64 ({error})") from error
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _check(path: Path, found: Mapping[str, int], told: Any, may_be_absent: bool) -> None:
    if told is None and (may_be_absent or not found):  # saved by transformers, which knows no checksums; or empty
        return
    if not isinstance(told, str) or len(told) != 8 * len(found):
        raise TicketError(f"{path}: {len(found)} tensors, but not as many checksums; the file is damaged")
    for i, name in enumerate(sorted(found)):
        if f"{found[name]:08x}" != told[8 * i : 8 * i + 8]:
            raise TicketError(f"{path}: {name}: the checksum does not match; the file is damaged")
