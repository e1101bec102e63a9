"""One mask stream: it agrees with an independent reader, and damaged streams are refused in little memory."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import packed_oracle as oracle
from support.mask_streams import forged, kept, masked, raw
from torch import Tensor

from hf_px.core.errors import TicketError
from hf_px.tickets import mask_codec


@settings(max_examples=50)
@given(masked())
def test_one_stream_alone(pair: tuple[Tensor, Tensor]) -> None:
    weight, bits = pair
    for values in (None, kept(weight, bits)):
        stream = mask_codec.encode(bits, values)
        expected = oracle.stream(raw(stream), None if values is None else raw(values))
        found = mask_codec.decode(stream, values, limit=bits.numel())
        assert found.bits().equal(bits) and expected.bits == bits.reshape(-1).int().tolist()
        assert raw(found.weight(kept(weight, bits))) == raw(weight)


# 40 weights at 12: enough for every bit order and the split between quotients and remainders to show
GOLDEN_BITS = [0] * 40
for _i in (0, 9, 17, 39):
    GOLDEN_BITS[_i] = 1


def test_a_stream_by_hand() -> None:
    """The specification, worked by hand: gaps 0 8 7 21, with k = 3 quotients 0 1 0 2 and remainders 0 0 7 5."""
    bits = torch.tensor(GOLDEN_BITS, dtype=torch.bool)
    body = struct.pack("<QQ", 4, 40) + bytes([0b1001101, 0b11000000, 0b1011])
    # k = 3 costs 7 + 12 bits, k = 2 costs (1 + 3 + 2 + 6) + 8 = 20, k = 4 costs (1 + 1 + 1 + 2) + 16 = 21
    head = bytes([1, 1, 3, 1])
    assert raw(mask_codec.encode(bits)) == head + struct.pack("<I", zlib.crc32(head + body)) + body


MANY = 2**40
BAD = {
    "a product past 2**64": forged(1, 0, 0, (2**33, 2**33)),
    "a product that is 0 modulo 2**64": forged(1, 0, 1, (2**32, 2**32), b"\1"),
    "sides that are 0 but for one": forged(1, 0, 0, (2**63, 0)),
    "sides that are 0 but for one of 2**64 - 1": forged(1, 0, 0, (0, 2**64 - 1)),
    "huge, nothing kept": forged(1, 0, 0, (MANY,)),
    "huge, everything kept": forged(0, 0, MANY, (MANY,)),
    "huge, all to be listed": forged(0, 0, 0, (MANY,)),
    "k past the end": forged(1, 33, 1, (8,), b"\1" + b"\0" * 5),
    "k = 255": forged(1, 255, 1, (8,), b"\1" + b"\0" * 32),
    "k = 32, a gap past the end": forged(1, 32, 1, (8,), b"\1" + b"\xff" * 4),
    "k = 32, gaps past 2**63": forged(1, 32, 2, (8,), b"\0" * 4096 + b"\x81" + b"\xff" * 8),
    "k = 0, a gap past the end": forged(1, 0, 1, (8,), b"\0\1"),
    "k = 0, a gap one past the end": forged(1, 0, 1, (7,), b"\x80"),
    "k = 1, a gap one past the end": forged(1, 1, 1, (7,), b"\x08\x01"),
    "one gap too few": forged(1, 0, 2, (8,), b"\1"),
    "one gap too many": forged(1, 0, 1, (8,), b"\3"),
    "more kept than there are": forged(1, 0, 9, (8,), b"\xff\1"),
    "as many kept as 64 bits hold": forged(1, 0, 2**64 - 1, (8,), b"\1"),
    "side 2": forged(2, 0, 0, (8,)),
    "more sides than bytes": forged(1, 0, 0, (8,), dims=16),
    "17 sides": forged(1, 0, 0, (1,) * 17),
    "a byte too many": forged(1, 0, 1, (8,), b"\1\0"),
    "a byte where none belongs": forged(1, 0, 0, (8,), b"\0"),
    "no remainders": forged(1, 8, 1, (300,), b"\1"),
    "only remainders": forged(1, 8, 1, (300,), b"\0"),
    "nothing": torch.empty(0, dtype=torch.uint8),
    "15 bytes": torch.ones(15, dtype=torch.uint8),
    "a later version": torch.tensor([2] + [0] * 15, dtype=torch.uint8),
    "two rows": forged(1, 0, 1, (8,), b"\1").reshape(5, 5),
    "not bytes": torch.zeros(16),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_stream_is_refused_in_little_memory(what: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TicketError):
            mask_codec.decode(BAD[what], limit=2**20)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_good_head_is_not_refused() -> None:
    """`forged` also makes valid streams: only invalid contents are refused."""
    found = mask_codec.decode(forged(1, 1, 1, (8,), b"\x08\x01"), limit=8)
    assert found.positions.tolist() == [7]


@pytest.mark.parametrize("side", [0, 1])
def test_values_of_another_number_are_refused(side: int) -> None:
    bits = torch.tensor([True, False, False]) if side else torch.tensor([True, True, False])
    stream = mask_codec.encode(bits)
    right = int(bits.sum())
    for values in (torch.ones(right + 1), torch.ones(right - 1), torch.ones(right, 1), torch.tensor(1.0)):
        with pytest.raises(TicketError, match="kept"):
            mask_codec.decode(stream, values, limit=3)


@settings(max_examples=50)
@given(masked(), st.data())
def test_no_flipped_bit_passes(pair: tuple[Tensor, Tensor], data: st.DataObject) -> None:
    weight, bits = pair
    values = kept(weight, bits)
    stream = mask_codec.encode(bits, values)
    both = bytearray(raw(stream) + raw(values))
    j = data.draw(st.integers(0, 8 * len(both) - 1))
    both[j // 8] ^= 1 << (j % 8)
    stream = torch.frombuffer(both[: len(stream)], dtype=torch.uint8)
    changed = torch.frombuffer(both, dtype=torch.uint8)[len(stream) :].clone().view(values.dtype)
    with pytest.raises(TicketError):
        mask_codec.decode(stream, changed, limit=2 * bits.numel() + 8)
