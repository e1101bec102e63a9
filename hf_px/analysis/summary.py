"""A table by layer (kept / total, density, width) and the sparsity of the network, nominal and effective.

Nominal sparsity counts pruned weights. Effective sparsity also counts dead weights: kept, but on no path from input to
output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from torch import nn

from ..core.mask import Mask
from ..core.prunable import plain_module
from ..core.text import name_list, text_table
from .layer_counts import LayerCounts, LayerTable, count_layers, live_bits

_JSON_KEYS = (
    "name",
    "shape",
    "kept",
    "total",
    "density",
    "dead",
    "live_units",
    "units",
)  # keys of a layer in prune.json


@dataclass(frozen=True)
class Summary(LayerTable):
    rows: list[LayerCounts]
    note: str = ""  # why dead weights are unknown, if they are
    outside: int = 0  # prunable weights that the mask does not name: all are kept

    @property
    def dead(self) -> int | None:
        return None if self.live is None else self.kept - self.live

    @property
    def units(self) -> int:
        return sum(row.units for row in self.rows)

    @property
    def kept_units(self) -> int:
        return sum(row.kept_units for row in self.rows)

    @property
    def live_units(self) -> int | None:
        return self._sum_known(row.live_units for row in self.rows)

    @property
    def bottlenecks(self) -> list[str]:
        """Layers whose share of units is less than half of the median layer's."""
        middle = median(row.unit_share for row in self.rows)
        return [row.name for row in self.rows if row.unit_share < middle / 2 or not row.unit_share]

    @property
    def nominal_sparsity(self) -> float:
        """Share of all prunable weights, those outside the mask included."""
        return (self.total - self.kept) / (self.total + self.outside)

    @property
    def masked_sparsity(self) -> float:
        """Share of the weights that the mask names."""
        return 1.0 - self.kept / self.total

    @property
    def effective_sparsity(self) -> float | None:
        return None if self.live is None else (self.total - self.live) / (self.total + self.outside)

    @property
    def collapsed(self) -> list[str]:
        """Tensors without a weight, or with dead weights only."""
        return [row.name for row in self.rows if row.kept - (row.dead or 0) == 0]

    def to_dict(self) -> dict[str, Any]:
        return {
            "layers": [{key: getattr(row, key) for key in _JSON_KEYS} for row in self.rows],
            "total": self.total,
            "kept": self.kept,
            "dead": self.dead,
            "outside": self.outside,
            "nominal_sparsity": self.nominal_sparsity,
            "effective_sparsity": self.effective_sparsity,
            "collapsed": self.collapsed,
            "note": self.note,
        }

    def __str__(self) -> str:
        rows = [("layer", "shape", "kept", "total", "density", "live units")]
        for row in self.rows:
            live_units = f"{'?' if row.live_units is None else row.live_units}/{row.units}"
            shape = "x".join(map(str, row.shape))
            rows.append((row.name, shape, f"{row.kept:,}", f"{row.total:,}", f"{row.density:.2%}", live_units))
        effective = "unknown" if self.effective_sparsity is None else f"{self.effective_sparsity:.4%}"
        dead = "" if self.dead is None else f" ({self.dead:,} kept weights are dead)"
        collapsed = f"{len(self.collapsed)} ({name_list(self.collapsed, 8)})" if self.collapsed else "none"
        outside = f"left out on purpose: {self.outside:,} weights; sparsity of the others {self.masked_sparsity:.4%}"
        kept, total = self.kept + self.outside, self.total + self.outside
        lines = [
            text_table(rows, left=(0, 1), rule=True),
            f"kept {kept:,} of {total:,}; sparsity {self.nominal_sparsity:.4%} nominal, {effective} effective{dead}",
            *([outside] if self.outside else []),
            f"collapsed layers: {collapsed}",
        ]
        return "\n".join([*lines, self.note] if self.note else lines)


def summary(
    model: nn.Module, mask: Mask, batches: Iterable[Any] | None = None, input_size: Sequence[int] | None = None
) -> Summary:
    """Count the weights of each layer; `batches` or `input_size` give the shape of an input if the model does not."""
    model = plain_module(model)
    live, note = live_bits(model, mask, batches, input_size)
    outside = sum(weight.numel() for weight in mask.left_out(model).values())
    return Summary(count_layers(model, mask, live), note, outside)
