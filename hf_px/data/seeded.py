"""Reproducible augmentation: an item depends on (seed, epoch, index) and on nothing else."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate


@contextmanager
def torch_seeded(*parts: int) -> Iterator[None]:
    """Seed torch's global CPU generator, the only one that torchvision uses, and restore it afterwards.

    The numbers are hashed, so that neighbours give unrelated seeds. Not torch.manual_seed, which would initialise the
    GPU in every worker.
    """
    packed = struct.pack(f"<{len(parts)}Q", *(part % 2**64 for part in parts))  # torch accepts negative seeds
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

    The counterpart of torch_seeded for a whole batch, without a loop over images.
    """
    state = np.full(len(indices), seed % 2**64, np.uint64)
    for part in (0, epochs, indices):
        state = _mixed(state + np.asarray(part).astype(np.uint64))
    drawn = _mixed(state[:, None] + np.arange(count, dtype=np.uint64))
    return (drawn >> np.uint64(11)) * 2.0**-53  # 53 bits, so the result is never 1


def _mixed(x: np.ndarray) -> np.ndarray:
    """A step of SplitMix64: each output bit depends on every bit of x. Overflow of uint64 is intended."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class SeededDataset(Dataset):
    """Items by (epoch, index): the same in any worker, in any process, and after a resume.

    The sampler yields (epoch, index), because persistent workers receive nothing but indices.
    """

    seed: int
    split: Sized

    def __len__(self) -> int:
        return len(self.split)

    def item(self, index: int) -> tuple[Any, Any]:
        """One item; random numbers come from torch's global generator."""
        raise NotImplementedError

    def __getitem__(self, key: tuple[int, int]) -> tuple[Any, Any]:
        epoch, index = epoch_and_index(key)
        with torch_seeded(self.seed, epoch, index):
            return self.item(index)

    def batch(self, keys: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """The items of these keys, stacked."""
        x, y = default_collate([self[key] for key in keys])
        return x, y


def epoch_and_index(key: tuple[int, int]) -> tuple[int, int]:
    if not isinstance(key, tuple):
        raise TypeError(
            f"item {key!r}: training images are indexed by (epoch, index); the sampler must yield such tuples"
        )
    epoch, index = (int(part) for part in key)
    return epoch, index
