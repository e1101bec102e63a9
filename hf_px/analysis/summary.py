"""A table by layer: kept / total, density, live units; and what the whole network keeps, nominal and effective.

Nominal sparsity counts pruned weights. Effective sparsity counts dead ones too: kept, but on no path from input to
output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from ..core.mask import Mask
from .live import live_bits, total
from .width import width


@dataclass(frozen=True)
class LayerRow:
    name: str
    shape: tuple[int, ...]
    kept: int
    total: int
    density: float
    dead: int | None  # kept, but on no path; None: unknown
    live_units: int | None  # output units with a weight that lies on a path; None: unknown
    units: int


@dataclass(frozen=True)
class Summary:
    rows: list[LayerRow]
    note: str = ""  # why dead weights are unknown, if they are

    @property
    def total(self) -> int:
        return sum(row.total for row in self.rows)

    @property
    def kept(self) -> int:
        return sum(row.kept for row in self.rows)

    @property
    def dead(self) -> int | None:
        return total(row.dead for row in self.rows)

    @property
    def nominal_sparsity(self) -> float:
        return 1.0 - self.kept / self.total

    @property
    def effective_sparsity(self) -> float | None:
        return None if self.dead is None else 1.0 - (self.kept - self.dead) / self.total

    @property
    def collapsed(self) -> list[str]:
        """Tensors that carry nothing any more: empty, or with dead weights only."""
        return [row.name for row in self.rows if row.kept - (row.dead or 0) == 0]

    def to_dict(self) -> dict[str, Any]:
        return {
            "layers": [asdict(row) for row in self.rows],
            "total": self.total,
            "kept": self.kept,
            "dead": self.dead,
            "nominal_sparsity": self.nominal_sparsity,
            "effective_sparsity": self.effective_sparsity,
            "collapsed": self.collapsed,
            "note": self.note,
        }

    def __str__(self) -> str:
        head = ("layer", "shape", "kept", "total", "density", "live units")
        body = [
            (
                row.name,
                "x".join(map(str, row.shape)),
                f"{row.kept:,}",
                f"{row.total:,}",
                f"{row.density:.2%}",
                f"{'?' if row.live_units is None else row.live_units}/{row.units}",
            )
            for row in self.rows
        ]
        widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
        lines = [
            "  ".join(
                cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths))
            ).rstrip()
            for line in [head, *body]
        ]
        lines.insert(1, "  ".join("-" * w for w in widths))
        effective = "unknown" if self.effective_sparsity is None else f"{self.effective_sparsity:.4%}"
        dead = "" if self.dead is None else f" ({self.dead:,} kept weights are dead)"
        lines.append(
            f"kept {self.kept:,} of {self.total:,}; sparsity {self.nominal_sparsity:.4%} nominal, "
            f"{effective} effective{dead}"
        )
        gone = self.collapsed
        shown = ", ".join(gone[:8]) + (", …" if len(gone) > 8 else "")
        lines.append(f"collapsed layers: {f'{len(gone)} ({shown})' if gone else 'none'}")
        return "\n".join([*lines, self.note] if self.note else lines)


def summary(
    model: nn.Module, mask: Mask, batches: Iterable[Any] | None = None, input_size: Sequence[int] | None = None
) -> Summary:
    """The table; `batches` or `input_size` give the shape of an input where the model does not tell it."""
    weights = mask.tensors_of(model)
    live, note = live_bits(model, mask, batches, input_size)
    rows = []
    for (name, weight), wide in zip(weights.items(), width(model, mask, live).rows):
        bits = mask.bits[name]
        kept, total = int(bits.sum()), bits.numel()
        dead = None if live is None else kept - int(live[name].sum())
        rows.append(LayerRow(name, tuple(weight.shape), kept, total, kept / total, dead, wide.live, wide.units))
    return Summary(rows, note)
