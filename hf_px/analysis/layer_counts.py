"""Weights and output units of each layer: how many there are, are kept, and lie on a path from input to output.

An output unit is a row of a linear map, or one output channel of a convolution with all its inputs. It is kept while
one of its weights is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batches import Batch, Batches
from ..core.errors import UnsupportedModelError
from ..core.forward import input_shape
from ..core.mask import Mask
from ..paths import live_weights


@dataclass(frozen=True)
class LayerCounts:
    """Weights, then output units. `live`: kept and on a path from input to output; None: unknown."""

    name: str
    shape: tuple[int, ...]
    total: int
    kept: int
    live: int | None
    units: int
    kept_units: int  # the paper's count
    live_units: int | None

    @property
    def density(self) -> float:
        return self.kept / self.total

    @property
    def dead(self) -> int | None:
        return None if self.live is None else self.kept - self.live

    @property
    def carrying_units(self) -> int:
        """Live units, or kept units where paths are unknown."""
        return self.kept_units if self.live_units is None else self.live_units

    @property
    def unit_share(self) -> float:
        return self.carrying_units / self.units


def count_layers(model: nn.Module, mask: Mask, live: Mapping[str, Tensor] | None) -> list[LayerCounts]:
    """One entry per tensor of the mask; `live` is what live_bits returns."""
    found = []
    for name, weight in mask.tensors_of(model).items():
        bits = mask.bits[name]
        units = _by_unit(model, name, bits).any(1)
        live_units = None if live is None else int(_by_unit(model, name, live[name]).any(1).sum())
        alive = None if live is None else int(live[name].sum())
        counts = bits.numel(), int(bits.sum()), alive, len(units), int(units.sum()), live_units
        found.append(LayerCounts(name, tuple(weight.shape), *counts))
    return found


class LayerTable:
    """Rows by layer, and the sums of their weights."""

    rows: Sequence[Any]

    @property
    def total(self) -> int:
        return sum(row.total for row in self.rows)

    @property
    def kept(self) -> int:
        return sum(row.kept for row in self.rows)

    @property
    def live(self) -> int | None:
        return self._sum_known(row.live for row in self.rows)

    @staticmethod
    def _sum_known(counts: Iterable[int | None]) -> int | None:
        """None if any count is unknown."""
        known = list(counts)
        return None if None in known else sum(n for n in known if n is not None)


def live_bits(
    model: nn.Module, mask: Mask, batches: Iterable[Any] | None = None, input_size: Sequence[int] | None = None
) -> tuple[dict[str, Tensor] | None, str]:
    """({name: True where a kept weight lies on a path}, ""), or (None, reason why that is unknown).

    `batches` or `input_size` give the shape of an input.
    """
    device = next(iter(mask.tensors_of(model).values())).device
    if batches is not None:
        batch = Batches(batches, device).first()
    else:
        shape = input_shape(model) if input_size is None else tuple(input_size)
        if shape is None:
            return None, "dead weights are unknown: pass `input_size` or `batches`"
        batch = Batch(torch.ones(1, *shape, device=device))
    try:
        return live_weights(model, mask, batch), ""
    except UnsupportedModelError as error:
        return None, f"dead weights are unknown: {error}"


def _by_unit(model: nn.Module, name: str, weight: Tensor) -> Tensor:
    """The tensor as a matrix with one row per output unit."""
    module = model.get_submodule(name.rpartition(".")[0])
    if isinstance(module, nn.modules.conv._ConvTransposeNd):  # its inputs come first, and its groups are among them
        inputs, outputs = weight.shape[:2]
        grouped = weight.reshape(module.groups, inputs // module.groups, outputs, -1)
        return grouped.transpose(1, 2).reshape(module.groups * outputs, -1)
    return weight.flatten(1)
