"""Random masked weights and hand-made mask streams, for tests of the packed format."""

from __future__ import annotations

import struct
import zlib

import torch
from hypothesis import strategies as st
from torch import Tensor

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def raw(tensor: Tensor) -> bytes:
    """Bit for bit: nan ≠ nan and 0.0 = -0.0 do not count here."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@st.composite
def masked(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """(weights of any bits at all, mask): any shape, density and dtype."""
    dims = draw(st.integers(0, 5))
    most = {0: 1, 1: 700, 2: 30, 3: 9, 4: 6, 5: 4}[dims]
    shape = tuple(draw(st.integers(0, most)) for _ in range(dims))
    density = draw(st.sampled_from([0.0, 1.0, 0.5, 0.02]) | st.floats(0, 1))
    dtype = draw(st.sampled_from(DTYPES))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    bits = torch.rand(shape, generator=g) < density
    data = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=g)
    odd = torch.rand(shape, generator=g)  # exact zeros of both signs, inf and nan among the kept
    data[odd < 0.2] = 0
    data[..., -1][(odd > 0.1) & (odd < 0.2)] = 128
    data[odd > 0.9] = 255
    data[~bits] = 0
    return data.reshape(-1).view(dtype).reshape(shape), bits


def kept(weight: Tensor, bits: Tensor) -> Tensor:
    """weight[bits], which torch 2.8 does not do for all types."""
    width = weight.element_size()
    rows = weight.reshape(-1, 1).view(torch.uint8).reshape(-1, width)
    return rows[bits.reshape(-1)].reshape(-1).view(weight.dtype)


def forged(side: int, k: int, kept: int, shape: tuple[int, ...], body: bytes = b"", dims: int | None = None) -> Tensor:
    """A stream that says what it likes, under a good checksum."""
    rest = struct.pack(f"<Q{len(shape)}Q", kept, *shape) + body
    head = bytes([1, side, k, len(shape) if dims is None else dims])
    return torch.frombuffer(bytearray(head + struct.pack("<I", zlib.crc32(head + rest)) + rest), dtype=torch.uint8)
