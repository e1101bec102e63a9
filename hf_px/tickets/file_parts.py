"""The parts of a ticket file: each a safetensors entry of its own, or those of one dtype joined in one tensor.

An entry in safetensors' header takes about a hundred bytes, and a ResNet-20 has 172: a quarter of its ticket at 98.2 %.
Format version 2 therefore is a safetensors file with `__metadata__` `format` = "pt" and `hf_px` = {"version":2}, and
these one-dimensional tensors:

    F32, …  of that dtype, one for each dtype that occurs: the elements of all plain tensors and values of masked ones
            that have it, one tensor after another in the order of `parts`
    masks   uint8: the streams of the masked tensors in the order of `parts`, each without its head
    index   uint8: a zlib stream (RFC 1950) and nothing after it; inflated, it is at most 16 MiB of UTF-8: the hf_px
            object of version 1 (see ticket_file.py; without `version`) with one more entry, `parts`, a list of

            [NAME, dtype, [d_1, …, d_n]]                          a plain tensor
            [NAME, dtype, [d_1, …, d_n], side, k, kept, length]   a masked one, with `length` bytes in `masks`

dtype is safetensors' name of it, null for a masked tensor whose values the file does not hold. No NAME ends in
":values" or ":mask", and none comes twice. The head of a stream is made of side, k, n, kept and d_1 … d_n, and of the
tensor's CRC-32 in `crc32`, which must be there.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import TicketError
from .mask_codec import join_stream, split_stream, tensor_bytes

SEPARATE, JOINED = 1, 2  # versions of the format: dense copies are of version 1, which any library reads
VALUES, MASK = ":values", ":mask"
MASKS, INDEX = "masks", "index"
INDEX_LIMIT = 2**24  # bytes of the inflated index: a small file must not fill the memory
_MAX_DIMS = 64  # of torch and numpy
DTYPES = {
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
_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}


@dataclass(frozen=True)
class FileParts:
    """Parts of a file by name, NAME:values and NAME:mask or plain tensors, in the order of its header."""

    names: list[str]
    get: Callable[[str], Tensor]
    shape: Callable[[str], list[int]]


def canonical_json(value: Any) -> str:
    """Compact JSON, the same text for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


# Writing


def safetensors_chunks(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes]:
    """A safetensors file in pieces. Not safetensors.save, which orders metadata differently in every process."""
    # widest dtype first, so that each tensor is aligned to its width; otherwise in the order given
    names = sorted(tensors, key=lambda name: -tensors[name].element_size())
    entries = [(name, _dtype(name, tensors[name]), list(tensors[name].shape), tensors[name].nbytes) for name in names]
    yield _safetensors_header(entries, metadata)
    for name in names:
        yield tensor_bytes(tensors[name]).tobytes()


def joined_chunks(stored: Mapping[str, Tensor], header: Mapping[str, Any]) -> Iterator[bytes]:
    """A file of version 2 in pieces, from its parts and its hf_px object.

    Equal contents give equal bytes wherever zlib is the same.
    """
    rows: list[list[Any]] = []
    by_dtype: dict[str, list[Tensor]] = {}
    streams: list[bytes] = []
    for part, tensor in stored.items():
        name = part.removesuffix(MASK)
        if part == name and not name.endswith(VALUES):
            rows.append([name, dtype := _dtype(name, tensor), list(tensor.shape)])
            by_dtype.setdefault(dtype, []).append(tensor)
        elif part != name:
            values = stored.get(name + VALUES)
            head, stream = split_stream(tensor)
            rows.append([name, None, list(head.shape), head.side, head.k, head.kept, len(stream)])
            streams.append(stream)
            if values is not None:
                rows[-1][1] = dtype = _dtype(name, values)
                by_dtype.setdefault(dtype, []).append(values)
    text = canonical_json({**header, "parts": rows}).encode()
    if len(text) > INDEX_LIMIT:
        raise TicketError(f"names and records take {len(text):,} bytes, a ticket has room for {INDEX_LIMIT:,}")
    index, masks = zlib.compress(text, 9), b"".join(streams)
    # widest dtype first, so that each tensor is aligned to its width
    dtypes = sorted(by_dtype, key=lambda dtype: (-_BY_NAME[dtype].itemsize, dtype))
    sizes = {dtype: sum(tensor.numel() for tensor in by_dtype[dtype]) for dtype in dtypes}
    entries = [(dtype, dtype, [size], size * _BY_NAME[dtype].itemsize) for dtype, size in sizes.items()]
    entries += [(name, "U8", [len(data)], len(data)) for name, data in ((MASKS, masks), (INDEX, index))]
    yield _safetensors_header(entries, {"format": "pt", "hf_px": canonical_json({"version": JOINED})})
    for dtype in dtypes:
        for tensor in by_dtype[dtype]:
            yield tensor_bytes(tensor).tobytes()
    yield masks
    yield index


def _safetensors_header(entries: Iterable[tuple[str, str, list[int], int]], metadata: Mapping[str, str]) -> bytes:
    """The head of a safetensors file with these (name, dtype, shape, bytes) in this order."""
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    end = 0
    for name, dtype, shape, size in entries:
        start, end = end, end + size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _dtype(name: str, tensor: Tensor) -> str:
    if tensor.dtype not in DTYPES:
        raise TicketError(f"{name}: {tensor.dtype} cannot be stored in a safetensors file; convert it first")
    return DTYPES[tensor.dtype]


# Reading


def open_parts(path: Path, file: Any, header: Mapping[str, Any]) -> FileParts:
    """The parts of an open safetensors file with this hf_px object."""
    if header["version"] == JOINED:
        return _joined(path, file, header)
    names = _in_header_order(path, file.keys())
    return FileParts(names, lambda name: _get_tensor(file, name), lambda name: file.get_slice(name).get_shape())


def read_index(path: Path, file: Any) -> Any:
    """The hf_px object of a file of version 2, inflated up to its limit."""
    if INDEX not in list(file.keys()):
        raise TicketError(f"{path}: a ticket of version 2 without its {INDEX}; the file is damaged")
    packed, inflate = tensor_bytes(_column(path, file, INDEX)).tobytes(), zlib.decompressobj()
    try:
        text = inflate.decompress(packed, INDEX_LIMIT)
        # asks for one byte more only: the rest of a bomb is never inflated
        if not inflate.eof and inflate.decompress(inflate.unconsumed_tail, 1):
            raise TicketError(f"{path}: its {INDEX} has more than {INDEX_LIMIT:,} bytes; the file is damaged")
    except zlib.error as error:
        raise TicketError(f"{path}: its {INDEX} cannot be inflated ({error}); the file is damaged") from error
    if not inflate.eof or inflate.unused_data:
        raise TicketError(f"{path}: its {INDEX} is truncated, or followed by other bytes; the file is damaged")
    try:
        return json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise TicketError(f"{path}: its {INDEX} is not JSON ({error})") from error


def _joined(path: Path, file: Any, header: Mapping[str, Any]) -> FileParts:
    rows, crc32 = _checked_rows(path, header), header.get("crc32", "")
    if not isinstance(crc32, str) or len(crc32) != 8 * len(rows) or not set(crc32) <= set("0123456789abcdef"):
        raise TicketError(f"{path}: {len(rows)} tensors, but not as many checksums; the file is damaged")
    place = {name: 8 * i for i, name in enumerate(sorted(row[0] for row in rows))}
    columns = {name: _column(path, file, name) for name in set(file.keys()) - {INDEX}}
    used = dict.fromkeys(columns, 0)

    def take(name: str, column: str, count: int) -> Tensor:
        start = used.setdefault(column, 0)
        used[column] = end = start + count
        if end > len(columns.get(column, ())):
            raise TicketError(f"{path}: {name[:200]}: {column} ends before its {count:,} elements; the file is damaged")
        return columns[column][start:end]

    parts: dict[str, Callable[[], Tensor]] = {}
    for name, dtype, shape, *numbers in rows:
        if not numbers:
            parts[name] = partial(_copied, take(name, dtype, math.prod(shape)), shape)
            continue
        side, k, kept, length = numbers
        if dtype is not None:
            parts[name + VALUES] = partial(torch.Tensor.detach, take(name, dtype, kept))
        crc = int(crc32[place[name] : place[name] + 8], 16)
        parts[name + MASK] = partial(join_stream, side, k, crc, kept, shape, take(name, MASKS, length))
    for column, count in used.items():
        if count != (there := len(columns[column])):
            raise TicketError(f"{path}: {column} has {there:,} elements, its {INDEX} lists {count:,}; it is damaged")
    return FileParts(list(parts), lambda part: parts[part](), lambda part: list(parts[part]().shape))


def _copied(part: Tensor, shape: list[int]) -> Tensor:
    """A copy, because a slice would keep the tensor that it is of in memory, and be saved with all of it."""
    # as bytes: a copy of bools would mend damaged ones, which the checksum must see
    return part.view(torch.uint8).clone().view(part.dtype).reshape(shape)


def _column(path: Path, file: Any, name: str) -> Tensor:
    """One tensor of a file of version 2, its name checked against its dtype."""
    entry = file.get_slice(name)
    dtype, dims = entry.get_dtype(), len(entry.get_shape())
    if dtype != ("U8" if name in (MASKS, INDEX) else name) or dtype not in _BY_NAME or dims != 1:
        raise TicketError(
            f"{path}: {name[:200]}: {dtype} with {dims} dimensions in a ticket of version 2; it is damaged"
        )
    return file.get_tensor(name)


def _checked_rows(path: Path, header: Mapping[str, Any]) -> list[list[Any]]:
    """`parts` of an index, with every entry of the right type, and no name twice."""
    rows = header.get("parts")
    if not isinstance(rows, list):
        raise TicketError(f"{path}: its index has no list of parts; the file is damaged")
    seen: set[str] = set()
    for row in rows:
        if not isinstance(row, list) or len(row) not in (3, 7) or not isinstance(row[0], str):
            raise TicketError(f"{path}: {str(row)[:80]} in its index is not an entry of a tensor; the file is damaged")
        name = row[0]
        if name in seen or name.endswith((VALUES, MASK)):
            raise TicketError(f"{path}: {name[:200]}: listed twice, or named like a part; the file is damaged")
        if wrong := _wrong(row, packed=header["weights"] == "packed"):
            raise TicketError(f"{path}: {name[:200]}: {wrong[:80]} in its index is invalid; the file is damaged")
        seen.add(name)
    return rows


def _wrong(row: list[Any], *, packed: bool) -> str:
    """What is invalid in an entry; "" if nothing is. Whether the mask is, `decode` finds out."""
    _, dtype, shape, *numbers = row
    known = isinstance(dtype, str) and dtype in _BY_NAME
    if not (known if packed else dtype is None and numbers):
        return f"dtype {dtype}"
    if not isinstance(shape, list) or len(shape) > _MAX_DIMS or not all(_counts(side) for side in shape):
        return f"shape {shape}"
    if not numbers and math.prod(side or 1 for side in shape) >= 2**63:  # torch refuses it even if it is empty
        return f"shape {shape}"
    if not all(_counts(number) for number in numbers) or any(number > 255 for number in numbers[:2]):
        return f"{numbers}"
    return ""


def _counts(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**64


def _get_tensor(file: Any, name: str) -> Tensor:
    dtype = file.get_slice(name).get_dtype()
    if dtype not in _BY_NAME:  # safetensors has dtypes that torch lacks
        raise TicketError(f"dtype {dtype} is not supported; the file is damaged, or from a later hf_px")
    return file.get_tensor(name)


def _in_header_order(path: Path, names: list[str]) -> list[str]:
    """Names in the order of the header, which is the model's order.

    Not by offset: the values of fully pruned layers are empty and share an offset, and safetensors returns those in
    a different order every time.
    """
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        listed = json.loads(file.read(length))  # safe_open has already validated it
    place = {name: i for i, name in enumerate(listed)}
    return sorted(names, key=lambda name: place.get(name, -1))
