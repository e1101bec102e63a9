"""One mask as a byte stream: gaps between positions in Rice's code; NAME:mask of the format in ticket_file.py."""

from __future__ import annotations

import base64
import binascii
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.errors import TicketError

VERSION = 1
_HEAD = struct.Struct("<BBBBIQ")
_MAX_K, _MAX_DIMS = 32, 16
_FOR_SPEED = 0.05  # a bitmap is faster to read: it is used if it adds at most this share of the values' size
_PIECE = 2**16


@dataclass(frozen=True)
class DecodedMask:
    """A decoded NAME:mask: the tensor's shape, and the positions of its kept or of its pruned weights."""

    crc32: int
    shape: tuple[int, ...]
    kept: int
    side: bool  # True if `positions` are the kept weights, False if they are the pruned ones
    positions: np.ndarray  # int64, ascending; with k = 0 a bool bitmap that ends at the last position

    def bits(self) -> Tensor:
        flat = np.full(math.prod(self.shape), not self.side)
        if self.positions.dtype == bool:
            flat[: len(self.positions)] ^= self.positions
        else:
            flat[self.positions] = self.side
        return torch.from_numpy(flat).reshape(self.shape)

    def weight(self, values: Tensor) -> Tensor:
        """θ ⊙ M: the values where the mask is 1, zeros elsewhere."""
        # unsigned integers of the same width, because numpy has no bfloat16; numpy zeros cost nothing until written
        integer = np.dtype(f"u{values.element_size()}")
        flat = np.zeros(math.prod(self.shape), integer)
        left = tensor_bytes(values).view(integer)
        if self.side and self.positions.dtype != bool:
            flat[self.positions] = left
        else:
            bitmap = self.positions if self.positions.dtype == bool else ~self.bits().reshape(-1).numpy()
            # by position: numpy assigns by bitmap five times more slowly. In pieces that fit in the CPU cache
            for start in range(0, len(bitmap), _PIECE):
                kept = np.flatnonzero(bitmap[start : start + _PIECE] == self.side)
                flat[start : start + _PIECE][kept], left = left[: len(kept)], left[len(kept) :]
            flat[len(bitmap) :] = 0 if self.side else left  # after the last pruned weight, all are kept
        return torch.from_numpy(flat.view(np.uint8)).view(values.dtype).reshape(self.shape)


def encode(bits: Tensor, values: Tensor | None = None) -> Tensor:
    """Encode one mask; `values`, if stored with it, are part of its checksum."""
    flat = bits.detach().cpu().contiguous().reshape(-1).numpy()
    kept = int(flat.sum())
    side = 2 * kept <= flat.size
    gaps = np.diff(np.flatnonzero(flat == side), prepend=-1) - 1
    k, bits_saved = 0, 0
    # Σ ⌊g/2^k⌋ is convex in k: the first minimum is the minimum
    while k < _MAX_K and (more := int((gaps >> k).sum() - (gaps >> (k + 1)).sum()) - len(gaps)) > 0:
        k, bits_saved = k + 1, bits_saved + more
    if values is not None and bits_saved <= _FOR_SPEED * 8 * values.nbytes:
        k = 0
    quotients = np.zeros(len(gaps) + int((gaps >> k).sum()), np.uint8)
    quotients[np.cumsum((gaps >> k) + 1) - 1] = 1
    remainders = (gaps[:, None] >> np.arange(k)).astype(np.uint8) & 1
    body = b"".join(
        [
            struct.pack(f"<Q{bits.dim()}Q", kept, *bits.shape),
            np.packbits(quotients, bitorder="little").tobytes(),
            np.packbits(remainders, bitorder="little").tobytes(),
        ]
    )
    head = struct.pack("<BBBB", VERSION, side, k, bits.dim())
    crc = struct.pack("<I", _crc32(head, body, values))
    return torch.frombuffer(bytearray(head + crc + body), dtype=torch.uint8)


def decode(stream: Tensor, values: Tensor | None = None, *, limit: int, check: bool = True) -> DecodedMask:
    """Decode one NAME:mask and raise TicketError if it is invalid. Allocates nothing for more than `limit` weights.

    `check=False` skips the checksum, for a stream that passed it before and whose values are no longer in memory.
    """
    if stream.dtype is not torch.uint8 or stream.dim() != 1:
        raise TicketError(f"a mask stream is one-dimensional uint8, this is {stream.dtype} {tuple(stream.shape)}")
    data = tensor_bytes(stream)
    if len(data) < _HEAD.size:
        raise TicketError(f"the mask stream is truncated: {len(data)} bytes")
    version, side, k, dims, crc, kept = _HEAD.unpack_from(data.data)
    if version != VERSION:
        raise TicketError(f"mask stream version {version}, this hf_px reads {VERSION}; upgrade hf-px")
    start = _HEAD.size + 8 * dims
    if side > 1 or k > _MAX_K or dims > _MAX_DIMS or len(data) < start:
        raise TicketError("the head of the mask stream is invalid; the file is damaged")
    shape = struct.unpack(f"<{dims}Q", data[_HEAD.size : start].tobytes())
    total = math.prod(shape)
    if math.prod(side or 1 for side in shape) >= 2**63:  # torch refuses such a shape even if the tensor is empty
        raise TicketError(f"shape {shape} is invalid; the file is damaged")
    if total > limit:
        raise TicketError(f"shape {shape} has {total:,} weights, more than a file of this size may have ({limit:,})")
    if kept > total:
        raise TicketError(f"{kept:,} weights kept of {total:,}; the file is damaged")
    if values is not None and (values.dim() != 1 or len(values) != kept):
        raise TicketError(f"{kept:,} weights kept, but values of shape {tuple(values.shape)}; the file is damaged")
    if check and _crc32(data[:4].data, data[8:].data, values) != crc:
        raise TicketError("the checksum does not match; the file is damaged")
    count = kept if side else total - kept
    split = len(data) - (count * k + 7) // 8
    if split < start:
        raise TicketError(f"{count:,} gaps do not fit in {len(data):,} bytes; the file is damaged")
    quotients = np.unpackbits(data[start:split], bitorder="little").view(bool)  # numpy scans bool faster than uint8
    last = _last_set_bit(quotients)
    # checked before positions are computed, which take eight bytes for each set bit
    if np.count_nonzero(quotients) != count or split - start != (last + 8) // 8:
        raise TicketError(f"{count:,} gaps expected, the stream holds another number; the file is damaged")
    if k == 0:
        positions, end = quotients[: last + 1], last + 1
    else:
        high = np.diff(np.flatnonzero(quotients), prepend=-1) - 1
        low = np.unpackbits(data[split:], count=count * k, bitorder="little").reshape(count, k) @ (1 << np.arange(k))
        end = (int(high.sum()) << k) + int(low.sum()) + count  # in Python integers: shifting the arrays may overflow
        positions = np.cumsum((high << k) + low + 1) - 1 if end <= total else high
    if end > total:
        raise TicketError("gaps run past the end of the tensor; the file is damaged")
    return DecodedMask(crc, shape, kept, bool(side), positions)


def _last_set_bit(bits: np.ndarray) -> int:
    """Position of the last set bit; -1 if the last byte has none, which a valid stream never has."""
    found = np.flatnonzero(bits[-8:])
    return len(bits) - min(len(bits), 8) + int(found[-1]) if len(found) else -1


@dataclass(frozen=True)
class StreamHead:
    """The head of a stream, without its version and its checksum."""

    side: int
    k: int
    kept: int
    shape: tuple[int, ...]


def split_stream(stream: Tensor) -> tuple[StreamHead, bytes]:
    """(head, the quotients and remainders) of a stream that `encode` made."""
    data = tensor_bytes(stream)
    _, side, k, dims, _, kept = _HEAD.unpack_from(data.data)
    start = _HEAD.size + 8 * dims
    shape = struct.unpack(f"<{dims}Q", data[_HEAD.size : start].tobytes())
    return StreamHead(side, k, kept, shape), data[start:].tobytes()


def join_stream(side: int, k: int, crc32: int, kept: int, shape: Sequence[int], body: Tensor) -> Tensor:
    """A stream from its head and the rest. It is as unchecked as these are: `decode` checks it."""
    head = _HEAD.pack(VERSION, side, k, len(shape), crc32, kept) + struct.pack(f"<{len(shape)}Q", *shape)
    return torch.cat([torch.frombuffer(bytearray(head), dtype=torch.uint8), body])


def mask_to_base64(bits: Tensor) -> str:
    """The stream of a mask in base64, for the header of a dense file."""
    return base64.b64encode(tensor_bytes(encode(bits)).tobytes()).decode()


def stream_from_base64(text: str) -> Tensor:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise TicketError(f"the mask in the header is not base64 ({error})") from error
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def stored_crc32(stream: Tensor) -> int:
    """The checksum in the head of a stream."""
    return _HEAD.unpack_from(tensor_bytes(stream).data)[4]


def kept_values(weight: Tensor, bits: Tensor) -> Tensor:
    """θ where the mask is 1. Indexed as unsigned integers: torch cannot index every dtype in every version."""
    flat = tensor_bytes(weight).view(f"u{weight.element_size()}")[bits.cpu().reshape(-1).numpy()]
    return torch.from_numpy(flat.view(np.uint8)).view(weight.dtype)


def tensor_bytes(tensor: Tensor) -> np.ndarray:
    """The bytes of a tensor in row-major order."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _crc32(head: bytes | memoryview, body: bytes | memoryview, values: Tensor | None) -> int:
    # the head is included: if half of the weights are kept, a flipped `side` would decode without an error
    crc = zlib.crc32(body, zlib.crc32(head))
    return crc if values is None else zlib.crc32(tensor_bytes(values).data, crc)
