"""A second reader of ticket files, written from the specifications that open ticket_file.py and file_parts.py alone.

Slow and plain: one bit at a time, the standard library only, so that it can be read beside the specification and shares
no code, no array library and no mistake with the reader that users get.
"""

import base64
import hashlib
import json
import math
import struct
import zlib
from pathlib import Path
from typing import NamedTuple


class Stored(NamedTuple):
    """One tensor of a safetensors file."""

    dtype: str
    shape: list[int]
    data: bytes


class Packed(NamedTuple):
    """One NAME:mask."""

    side: int
    k: int
    crc: int
    kept: int
    shape: tuple[int, ...]
    bits: list[int]
    size: int  # bytes of the stream


class Ticket(NamedTuple):
    header: dict  # the hf_px object
    stored: dict[str, Stored]  # as they lie in the file
    masks: dict[str, Packed]
    weights: dict[str, Stored]  # NAME → its weights, zeros included; plain tensors too
    digest: str
    crc32: str


WIDTH = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}


def safetensors(data: bytes) -> tuple[dict[str, str], dict[str, Stored]]:
    """(`__metadata__`, tensors)."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__")
    body = data[8 + length :]
    tensors = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        tensors[name] = Stored(entry["dtype"], entry["shape"], body[start:end])
    return metadata, tensors


def separated(tensors: dict[str, Stored]) -> tuple[dict, dict[str, Stored]]:
    """(hf_px object, tensors as version 1 stores them) of version 2."""
    inflated = zlib.decompress(tensors["index"].data)
    assert len(inflated) <= 16 * 2**20
    header = json.loads(inflated)
    rows = header.pop("parts")
    place = {name: i for i, name in enumerate(sorted(row[0] for row in rows))}
    at = dict.fromkeys(tensors, 0)
    found: dict[str, Stored] = {}

    def take(column: str, size: int) -> bytes:
        start = at[column]
        at[column] += size
        return tensors[column].data[start : start + size]

    for column, tensor in tensors.items():
        assert tensor.dtype == ("U8" if column in ("masks", "index") else column) and len(tensor.shape) == 1
    for row in rows:
        name, dtype, shape = row[:3]
        if len(row) == 3:
            found[name] = Stored(dtype, shape, take(dtype, WIDTH[dtype] * math.prod(shape)))
            continue
        side, k, kept, length = row[3:]
        if dtype is not None:
            found[name + ":values"] = Stored(dtype, [kept], take(dtype, WIDTH[dtype] * kept))
        crc = header["crc32"][8 * place[name] : 8 * place[name] + 8]
        head = bytes([1, side, k, len(shape)]) + bytes.fromhex(crc)[::-1] + struct.pack("<Q", kept)
        data = head + b"".join(struct.pack("<Q", d) for d in shape) + take("masks", length)
        found[name + ":mask"] = Stored("U8", [len(data)], data)
    assert all(at[column] == len(tensors[column].data) for column in tensors if column != "index")
    return header, found


def bit(data: bytes, j: int) -> int:
    return data[j // 8] >> (j % 8) & 1


def stream(data: bytes, values: bytes | None = None) -> Packed:
    """NAME:mask, and the bytes of NAME:values where they are stored."""
    version, side, k, n = data[0], data[1], data[2], data[3]
    assert version == 1 and side in (0, 1) and k <= 32 and n <= 16
    crc, kept = struct.unpack("<IQ", data[4:16])
    shape = struct.unpack("<" + "Q" * n, data[16 : 16 + 8 * n])
    assert zlib.crc32(data[:4] + data[8:] + (values or b"")) == crc
    total = 1
    for d in shape:
        total *= d
    count = kept if side == 1 else total - kept
    # the quotients: that many 0 bits and a 1 bit each
    j = 8 * (16 + 8 * n)
    quotients = []
    for _ in range(count):
        zeros = 0
        while bit(data, j) == 0:
            zeros += 1
            j += 1
        j += 1
        quotients.append(zeros)
    while j % 8:  # unused bits of a last byte
        assert bit(data, j) == 0
        j += 1
    # the remainders: k bits each, the lowest first
    position = -1
    bits = [1 - side] * total
    for quotient in quotients:
        gap = quotient << k
        for low in range(k):
            gap |= bit(data, j) << low
            j += 1
        position += gap + 1
        bits[position] = side
    while j % 8:
        assert bit(data, j) == 0
        j += 1
    assert j == 8 * len(data)  # nothing follows
    assert sum(bits) == kept
    return Packed(side, k, crc, kept, shape, bits, len(data))


def gaps(packed: Packed) -> list[int]:
    found, last = [], -1
    for position, kept in enumerate(packed.bits):
        if kept == packed.side:
            found.append(position - last - 1)
            last = position
    return found


def rice_bits(gaps: list[int], k: int) -> int:
    """Bits of quotients and remainders if these gaps were written with this k."""
    return sum((gap >> k) + 1 + k for gap in gaps)


def digest(masks: dict[str, Packed]) -> str:
    sha = hashlib.sha256()
    for name in sorted(masks):
        bitmap = bytearray((len(masks[name].bits) + 7) // 8)
        for j, kept in enumerate(masks[name].bits):
            bitmap[j // 8] |= kept << (j % 8)
        sha.update(name.encode() + b"\0" + str(masks[name].shape).encode() + b"\0" + bytes(bitmap))
    return sha.hexdigest()


def read(path: str | Path) -> Ticket:
    metadata, stored = safetensors(Path(path).read_bytes())
    assert metadata["format"] == "pt"
    header = json.loads(metadata["hf_px"])
    assert header["version"] in (1, 2)
    if header["version"] == 2:
        header, stored = separated(stored)
        assert header["weights"] != "dense"
    masks, weights, crc = {}, {}, {}
    if header["weights"] == "dense":
        masks = {name: stream(base64.b64decode(text)) for name, text in header.get("masks", {}).items()}
        weights = stored
        crc = {name: zlib.crc32(tensor.data) for name, tensor in stored.items()}
    else:
        for part, tensor in stored.items():
            name = part.removesuffix(":mask")
            if name != part:
                assert tensor.dtype == "U8" and tensor.shape == [len(tensor.data)]
                values = stored.get(name + ":values")
                assert (values is None) == (header["weights"] == "base")
                masks[name] = stream(tensor.data, values.data if values else None)
                crc[name] = masks[name].crc
                if values:
                    assert values.shape == [masks[name].kept]
                    weights[name] = scattered(masks[name], values)
            elif not part.endswith(":values"):
                weights[name] = tensor
                crc[name] = zlib.crc32(tensor.data)
    assert all(name in {*masks, *weights} for name in header.get("tied", {}).values())
    joined = "".join(f"{crc[name]:08x}" for name in sorted(crc))
    return Ticket(header, stored, masks, weights, digest(masks), joined)


def scattered(packed: Packed, values: Stored) -> Stored:
    """The kept weights at their places, zeros elsewhere."""
    width = WIDTH[values.dtype]
    pieces, at = [], 0
    for kept in packed.bits:
        pieces.append(values.data[at : at + width] if kept else b"\0" * width)
        at += width if kept else 0
    assert at == len(values.data)
    return Stored(values.dtype, list(packed.shape), b"".join(pieces))


def bound(masked: list[tuple[int, int, int]], plain_bytes: int) -> float:
    """Bytes no code of random masks beats: Σ kept·width + n·H(kept/n)/8 of (kept, n, width), and the plain tensors."""
    total = float(plain_bytes)
    for kept, n, width in masked:
        total += kept * width
        if 0 < kept < n:
            # n·H(p), with the counts themselves: n log n - kept log kept - pruned log pruned
            pruned = n - kept
            total += (n * math.log2(n) - kept * math.log2(kept) - pruned * math.log2(pruned)) / 8
    return total
