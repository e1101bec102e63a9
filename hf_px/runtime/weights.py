"""The kept weights of a layer: where they are and what they are, never the dense tensor; and BatchNorm folded in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..tickets.mask_codec import DecodedMask
from .graph import Layer

Floats = np.ndarray
PAIR = np.dtype([("offset", np.int32), ("value", np.float32)])


@dataclass(frozen=True)
class SparseWeight:
    """Values at flat positions, ascending, of a tensor that is zero elsewhere."""

    shape: tuple[int, ...]
    positions: np.ndarray  # int64, or uint32 where that suffices
    values: Floats

    @classmethod
    def from_dense(cls, weight: Tensor) -> SparseWeight:
        flat = weight.detach().to("cpu", torch.float32).contiguous().numpy().reshape(-1)
        positions = np.flatnonzero(flat)
        return cls(tuple(weight.shape), _small(positions, flat.size), flat[positions])

    @classmethod
    def from_packed(cls, mask: DecodedMask, values: Tensor) -> SparseWeight:
        """From a tensor of a packed ticket, without its zeros."""
        if mask.side and mask.positions.dtype != bool:
            positions = mask.positions
        else:
            positions = np.flatnonzero(mask.bits().reshape(-1).numpy())
        return cls(mask.shape, _small(positions, math.prod(mask.shape)), values.to(torch.float32).numpy())

    @property
    def kept(self) -> int:
        return len(self.positions)

    @property
    def total(self) -> int:
        return math.prod(self.shape)

    def dense(self) -> Tensor:
        flat = np.zeros(self.total, np.float32)
        flat[self.positions] = self.values
        return torch.from_numpy(flat).view(self.shape)

    def pairs(self, offsets: np.ndarray, groups: int, scale: Floats | None) -> tuple[np.ndarray, np.ndarray]:
        """(first weight of each row, (offset, value · scale[row]) of each weight).

        `offsets` has the offset of every (input channel, kh, kw) from position 0 of the input.
        """
        rows = self.shape[0]
        row, rest = np.divmod(self.positions, self.total // rows)
        if groups > 1:  # the input channel of a weight counts from the first of its group
            rest = rest + row // (rows // groups) * (self.total // rows)
        found = np.empty(self.kept, PAIR)
        found["offset"] = offsets.reshape(-1)[rest]
        found["value"] = self.values if scale is None else self.values * scale[row]
        first = np.zeros(rows + 1, np.uint32)
        np.cumsum(np.bincount(row, minlength=rows), out=first[1:])
        return first, found


def folded_norm(layer: Layer, tensors: Mapping[str, Tensor]) -> tuple[Floats | None, Floats | None]:
    """(scale, bias) of each row: γ (y + b - μ) / √(σ² + ε) + β = scale · y + bias; None for 1 and for 0."""
    bias = _float64(tensors[layer.bias]) if layer.bias else None
    if layer.norm is None:
        return None, None if bias is None else bias.astype(np.float32)
    gamma, beta, mean, variance, eps = layer.norm
    scale = 1 / np.sqrt(_float64(tensors[variance]) + eps)
    scale = scale * _float64(tensors[gamma]) if gamma else scale
    shift = ((0 if bias is None else bias) - _float64(tensors[mean])) * scale
    shift = shift + _float64(tensors[beta]) if beta else shift
    return scale.astype(np.float32), shift.astype(np.float32)


def _float64(tensor: Tensor) -> np.ndarray:
    return tensor.detach().to("cpu", torch.float64).numpy()


def _small(positions: np.ndarray, total: int) -> np.ndarray:
    return positions.astype(np.uint32) if total < 2**32 else positions
