"""bench(…): a ticket in several runtimes, timed in one run with alternating turns."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..analysis.latency import Latency, latency, machine
from ..core.errors import UnsupportedModelError
from ..core.forward import output_tensor
from ..core.mask import Mask
from .engines import other_engines
from .fast import FastModel, fast
from .kernels import RuntimeUnavailableError

DENSE, SPARSE, FULL = "torch, dense", "hf_px, sparse", "torch, full width"
BUSY = 2.0  # upper quartile / lower quartile; an idle machine has less than 1.2


@dataclass(frozen=True)
class BenchRow:
    runtime: str
    latency: Latency
    images_per_second: float
    speedup: float  # over dense torch
    difference: float  # largest difference of outputs from dense torch, relative to the largest output; nan: others
    weight_bytes: int


@dataclass(frozen=True)
class Bench:
    machine: str
    batch: int
    image_size: tuple[int, ...]
    rows: tuple[BenchRow, ...]

    def row(self, runtime: str) -> BenchRow:
        return next(row for row in self.rows if row.runtime == runtime)

    def speed(self, mask: Mask) -> dict[str, Any]:
        """The contents of speed.json, which the card shows; `digest` says which ticket it is of."""
        dense, sparse = (1e3 * self.row(name).latency.median for name in (DENSE, SPARSE))
        record: dict[str, Any] = {"digest": mask.digest(), "image_size": list(self.image_size), "machine": self.machine}
        record |= {"dense_ms": dense, "sparse_ms": sparse}
        if any(row.runtime == FULL for row in self.rows):
            record["full_ms"] = 1e3 * self.row(FULL).latency.median
        return record

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_speed(
    model: nn.Module, mask: Mask, size: tuple[int, ...], full: nn.Module | None = None
) -> dict[str, Any] | None:
    """The contents of speed.json: one image on one thread, dense and sparse, and before shrink if it is given.

    None if the model cannot run sparse, or if the times spread so far that the machine was busy.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        sparse = fast(model.eval(), input_size=tuple(size), progress=False)
        found = bench(model, sparse, torch.zeros(1, *size), full=full, others=False, seconds=0.5)
    except (RuntimeUnavailableError, UnsupportedModelError):
        return None
    finally:
        torch.set_num_threads(threads)
    spread = max(row.latency.high / row.latency.low for row in found.rows)
    return found.speed(mask) if spread < BUSY else None


def bench(
    model: nn.Module,
    sparse: FastModel,
    x: Tensor,
    *,
    full: nn.Module | None = None,
    others: bool = True,
    seconds: float = 2.0,
) -> Bench:
    """Time the dense model, the sparse one, and with `others` those of other runtimes, on the batch `x`.

    `full` is the architecture before shrink, at any weights.
    """
    models: dict[str, nn.Module] = {DENSE: model, SPARSE: sparse}
    if others:
        models |= {f"{name}, dense": engine for name, engine in other_engines(model, x).items()}
    models |= {} if full is None else {FULL: full}
    with torch.inference_mode():
        outputs = {name: output_tensor(each(x)) for name, each in models.items()}
        times = latency(models, x, seconds=seconds)
    dense_bytes, full_bytes = _bytes_of(model), _bytes_of(full) if full is not None else 0
    scale = float(outputs[DENSE].abs().max()) or 1.0
    rows = [
        BenchRow(
            name,
            times[name],
            len(x) / times[name].median,
            times[DENSE].median / times[name].median,
            math.nan if name == FULL else float((outputs[name] - outputs[DENSE]).abs().max()) / scale,
            sparse.nbytes if name == SPARSE else full_bytes if name == FULL else dense_bytes,
        )
        for name in models
    ]
    return Bench(machine(), len(x), tuple(x.shape[1:]), tuple(rows))


def _bytes_of(model: nn.Module) -> int:
    return sum(t.nbytes for t in {t.data_ptr(): t for t in model.state_dict().values()}.values())
