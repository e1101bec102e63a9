"""Randomness by name: what an item looks like depends on (seed, epoch, index) and on nothing that came before."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import Dataset


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


class Seeded(Dataset):
    """Items by (epoch, index): the same in any worker, on any process, and after a resume.

    A sampler yields (epoch, index); the epoch comes with the index because persistent workers hear of nothing else.
    """

    seed: int

    def item(self, index: int) -> tuple[Any, Any]:
        """Drawn with torch's own generator."""
        raise NotImplementedError

    def __getitem__(self, key: tuple[int, int]) -> tuple[Any, Any]:
        if not isinstance(key, tuple):
            raise TypeError(f"item {key!r}: training images go by (epoch, index); let the sampler yield such pairs")
        epoch, index = (int(part) for part in key)
        with torch_seeded(self.seed, epoch, index):
            return self.item(index)
