"""Randomness by name: what an item looks like depends on (seed, epoch, index) and on nothing that came before."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_seeded(*parts: int) -> Iterator[None]:
    """torch's CPU generator as these numbers say, and afterwards as it was: torchvision knows no other generator.

    The numbers go through a hash, for neighbours must not give neighbouring seeds. Not torch.manual_seed: it would
    reach for the GPU too, in every worker.
    """
    packed = struct.pack(f"<{len(parts)}Q", *(part % 2**64 for part in parts))  # a seed may be any that torch takes
    seed = int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")
    generator = torch.random.default_generator
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)
