"""Randomness by name: what an item looks like depends on (seed, epoch, index) and on nothing that came before."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate


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


def uniforms(seed: int, epochs: np.ndarray, indices: np.ndarray, count: int) -> np.ndarray:
    """`count` numbers in [0, 1) for each (epoch, index): u = mix(mix(mix(mix(seed) + epoch) + index) + k) / 2^64.

    What torch_seeded is for one item, this is for a whole batch, without a line of Python for each of its images.
    """
    state = np.full(len(indices), seed % 2**64, np.uint64)
    for part in (0, epochs, indices):
        state = _mixed(state + np.asarray(part).astype(np.uint64))
    drawn = _mixed(state[:, None] + np.arange(count, dtype=np.uint64))
    return (drawn >> np.uint64(11)) * 2.0**-53  # a float64 has 53 bits: never 1


def _mixed(x: np.ndarray) -> np.ndarray:
    """SplitMix64's step: each bit depends on every bit of x. Products of uint64 wrap, and are meant to."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Seeded(Dataset):
    """Items by (epoch, index): the same in any worker, on any process, and after a resume.

    A sampler yields (epoch, index); the epoch comes with the index because persistent workers hear of nothing else.
    """

    seed: int

    def item(self, index: int) -> tuple[Any, Any]:
        """Drawn with torch's own generator."""
        raise NotImplementedError

    def __getitem__(self, key: tuple[int, int]) -> tuple[Any, Any]:
        epoch, index = pair(key)
        with torch_seeded(self.seed, epoch, index):
            return self.item(index)

    def batch(self, keys: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """The items of these keys, stacked."""
        x, y = default_collate([self[key] for key in keys])
        return x, y


def pair(key: tuple[int, int]) -> tuple[int, int]:
    if not isinstance(key, tuple):
        raise TypeError(f"item {key!r}: training images go by (epoch, index); let the sampler yield such pairs")
    epoch, index = (int(part) for part in key)
    return epoch, index
