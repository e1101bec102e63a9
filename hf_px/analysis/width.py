"""Width: output units of a layer that keep a weight, as the paper counts them, and those that lie on a path.

A unit is a row of a linear map, or a kernel of a convolution with all its inputs: gone when its last weight is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from torch import Tensor, nn

from ..core.mask import Mask
from .live import total


@dataclass(frozen=True)
class WidthRow:
    name: str
    units: int
    kept: int  # with a weight left: the paper's count
    live: int | None  # with a weight that lies on a path from input to output; None: unknown

    @property
    def share(self) -> float:
        """Of the units, those that carry something; those that keep a weight, where paths are unknown."""
        return (self.kept if self.live is None else self.live) / self.units


@dataclass(frozen=True)
class Width:
    rows: list[WidthRow]

    @property
    def units(self) -> int:
        return sum(row.units for row in self.rows)

    @property
    def kept(self) -> int:
        return sum(row.kept for row in self.rows)

    @property
    def live(self) -> int | None:
        return total(row.live for row in self.rows)

    @property
    def bottlenecks(self) -> list[str]:
        """Layers whose share of units is less than half of the median layer's."""
        middle = median(row.share for row in self.rows)
        return [row.name for row in self.rows if row.share < middle / 2 or not row.share]

    def to_dict(self) -> dict[str, Any]:
        return {
            "layers": [asdict(row) for row in self.rows],
            "units": self.units,
            "kept": self.kept,
            "live": self.live,
            "bottlenecks": self.bottlenecks,
        }


def width(model: nn.Module, mask: Mask, live: Mapping[str, Tensor] | None = None) -> Width:
    """Units by layer; `live` says which weights lie on a path (analysis.live_bits)."""
    mask.tensors_of(model)  # an error where they do not fit
    rows = []
    for name, bits in mask.bits.items():
        kept = by_unit(model, name, bits).any(1)
        alive = None if live is None else int(by_unit(model, name, live[name]).any(1).sum())
        rows.append(WidthRow(name, len(kept), int(kept.sum()), alive))
    return Width(rows)


def by_unit(model: nn.Module, name: str, weight: Tensor) -> Tensor:
    """The tensor with a row a unit."""
    module = model.get_submodule(name.rpartition(".")[0])
    if isinstance(module, nn.modules.conv._ConvTransposeNd):  # inputs come first there, and groups among them
        inputs, outputs = weight.shape[:2]
        grouped = weight.reshape(module.groups, inputs // module.groups, outputs, -1)
        return grouped.transpose(1, 2).reshape(module.groups * outputs, -1)
    return weight.flatten(1)
