"""One mask as a row of bytes: gaps between positions, by Rice's code. NAME:mask in the specification in format.py."""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.errors import TicketError

VERSION = 1
_HEAD = struct.Struct("<BBBBIQ")
_MAX_K, _MAX_DIMS = 32, 16
_FOR_SPEED = 0.05  # of the values: what a bitmap may cost more than the shortest code
_PIECE = 2**16


@dataclass(frozen=True)
class Stream:
    """A decoded NAME:mask: the shape, and where one side is."""

    crc32: int
    shape: tuple[int, ...]
    kept: int
    side: bool  # is `there` where weights are kept?
    there: np.ndarray  # ascending positions, int64; or, as k = 0 stores it, a bitmap up to the last of them, bool

    def bits(self) -> Tensor:
        flat = np.full(math.prod(self.shape), not self.side)
        if self.there.dtype == bool:
            flat[: len(self.there)] ^= self.there
        else:
            flat[self.there] = self.side
        return torch.from_numpy(flat).reshape(self.shape)

    def weight(self, values: Tensor) -> Tensor:
        """θ ⊙ M: the values where the mask is 1, zeros elsewhere."""
        # as whole numbers of the same width: numpy has no bfloat16. numpy, not torch: its zeros are free until written
        kind = np.dtype(f"u{values.element_size()}")
        flat = np.zeros(math.prod(self.shape), kind)
        left = raw(values).view(kind)
        if self.side and self.there.dtype != bool:
            flat[self.there] = left
        else:
            there = self.there if self.there.dtype == bool else ~self.bits().reshape(-1).numpy()
            # by position, since numpy assigns by bitmap five times more slowly; in pieces that stay in the cache
            for start in range(0, len(there), _PIECE):
                here = np.flatnonzero(there[start : start + _PIECE] == self.side)
                flat[start : start + _PIECE][here], left = left[: len(here)], left[len(here) :]
            flat[len(there) :] = 0 if self.side else left  # after the last that is pruned, all are kept
        return torch.from_numpy(flat.view(np.uint8)).view(values.dtype).reshape(self.shape)


def encode(bits: Tensor, values: Tensor | None = None) -> Tensor:
    """The stream of one mask; `values`, if stored beside it, go into its checksum."""
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


def decode(stream: Tensor, values: Tensor | None = None, *, limit: int, check: bool = True) -> Stream:
    """Read one NAME:mask; a TicketError says what is wrong. No array is made for more than `limit` weights.

    `check=False` leaves out the checksum, for a stream that has passed it and whose values are no longer at hand.
    """
    if stream.dtype is not torch.uint8 or stream.dim() != 1:
        raise TicketError(f"a mask is a row of bytes, this is {stream.dtype} of shape {tuple(stream.shape)}")
    data = raw(stream)
    if len(data) < _HEAD.size:
        raise TicketError(f"a mask of {len(data)} bytes is cut short")
    version, side, k, dims, crc, kept = _HEAD.unpack_from(data.data)
    if version != VERSION:
        raise TicketError(f"mask stream version {version}, this hf_px reads {VERSION}; upgrade hf-px")
    start = _HEAD.size + 8 * dims
    if side > 1 or k > _MAX_K or dims > _MAX_DIMS or len(data) < start:
        raise TicketError("the head of the mask makes no sense; the file is damaged")
    shape = struct.unpack(f"<{dims}Q", data[_HEAD.size : start].tobytes())
    total = math.prod(shape)  # Python's whole numbers do not overflow
    if math.prod(side or 1 for side in shape) >= 2**63:  # torch has no such tensor, even if it is empty
        raise TicketError(f"shape {shape} makes no sense; the file is damaged")
    if total > limit:
        raise TicketError(f"shape {shape} is {total:,} weights, more than this file can stand for ({limit:,})")
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
    quotients = np.unpackbits(data[start:split], bitorder="little").view(bool)  # numpy searches bytes far more slowly
    last = _last(quotients)
    # counted before positions are made: eight bytes for a set bit
    if np.count_nonzero(quotients) != count or split - start != (last + 8) // 8:
        raise TicketError(f"{count:,} gaps expected, the stream holds others; the file is damaged")
    if k == 0:
        there, end = quotients[: last + 1], last + 1
    else:
        high = np.diff(np.flatnonzero(quotients), prepend=-1) - 1
        low = np.unpackbits(data[split:], count=count * k, bitorder="little").reshape(count, k) @ (1 << np.arange(k))
        end = (int(high.sum()) << k) + int(low.sum()) + count  # before the arrays are shifted, which may overflow
        there = np.cumsum((high << k) + low + 1) - 1 if end <= total else high
    if end > total:
        raise TicketError("gaps run past the end of the tensor; the file is damaged")
    return Stream(crc, shape, kept, bool(side), there)


def _last(bits: np.ndarray) -> int:
    """Of the last set bit; -1 if there is none in the last byte, which is never empty."""
    found = np.flatnonzero(bits[-8:])
    return len(bits) - min(len(bits), 8) + int(found[-1]) if len(found) else -1


def crc32_of(stream: Tensor) -> int:
    """The checksum that a stream says it has."""
    return _HEAD.unpack_from(raw(stream).data)[4]


def kept_values(weight: Tensor, bits: Tensor) -> Tensor:
    """θ where the mask is 1; as whole numbers of the same width, since not every torch picks from every type."""
    flat = raw(weight).view(f"u{weight.element_size()}")[bits.cpu().reshape(-1).numpy()]
    return torch.from_numpy(flat.view(np.uint8)).view(weight.dtype)


def raw(tensor: Tensor) -> np.ndarray:
    """The bytes of a tensor, row by row."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _crc32(head: bytes | memoryview, body: bytes | memoryview, values: Tensor | None) -> int:
    crc = zlib.crc32(body, zlib.crc32(head))  # the head too: where half is kept, the other side fits as well
    return crc if values is None else zlib.crc32(raw(values).data, crc)
