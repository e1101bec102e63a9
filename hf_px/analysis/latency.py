"""Latency: median and quartiles of the time of a forward pass on this machine, for several models in turns."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

import torch
from torch import Tensor, nn

from ..core.forward import evaluating

NO_FASTER = (
    "no difference within the spread; unstructured zeros do not make it faster here, because dense kernels multiply "
    "them like any number."
)


@dataclass(frozen=True)
class Latency:
    """Seconds of a forward pass: median and quartiles."""

    median: float
    low: float
    high: float
    runs: int


@torch.no_grad()
def latency(models: Mapping[str, nn.Module], x: Tensor, *, seconds: float = 2.0, least: int = 5) -> dict[str, Latency]:
    """Time the models on `x` in eval mode, in turns, so that other load on the machine affects all of them alike.

    Takes about `seconds` per model and at least `least` runs, after two warm-up runs.
    """
    if not models:
        raise ValueError("`models` is empty; pass {'dense': model, …}")
    least = max(2, least)  # quartiles need two runs
    taken: dict[str, list[float]] = {name: [] for name in models}
    # not core.forward.undisturbed, which turns TF32 off: models are timed as users run them
    with evaluating(*models.values()), torch.random.fork_rng([x.device] if x.device.type == "cuda" else []):
        for model in [*models.values()] * 2:
            _timed(model, x)
        names, end = list(models), time.perf_counter() + seconds * len(models)
        while len(taken[names[-1]]) < least or time.perf_counter() < end:
            for name in names:
                taken[name].append(_timed(models[name], x))
            names.reverse()  # no model always runs first
    found = {name: quantiles(times, n=4, method="inclusive") for name, times in taken.items()}
    return {name: Latency(median, low, high, len(taken[name])) for name, (low, median, high) in found.items()}


def _timed(model: nn.Module, x: Tensor) -> float:
    _synchronize(x)
    start = time.perf_counter()
    model(x)
    _synchronize(x)
    return time.perf_counter() - start


def _synchronize(x: Tensor) -> None:
    if x.device.type != "cpu":
        torch.accelerator.synchronize(x.device)


def is_faster(dense: Latency, sparse: Latency) -> bool | None:
    """None if the quartiles overlap: no difference within the spread."""
    if sparse.high < dense.low:
        return True
    return False if sparse.low > dense.high else None


def latency_verdict(dense: Latency, sparse: Latency, sparse_runtime: bool = False) -> str:
    """One sentence on whether the zeros made the network faster on this machine."""
    times = f"Pruned {_milliseconds(sparse)} against dense {_milliseconds(dense)}"
    if sparse_runtime:
        return f"{times}: {dense.median / sparse.median:.2g} times as fast, in the sparse runtime of hf_px."
    change = abs(sparse.median / dense.median - 1)
    if is_faster(dense, sparse):
        return (
            f"{times}: {change:.0%} faster here, beyond the spread; dense kernels multiply zeros like any number, so "
            "look for another cause before you rely on it."
        )
    if is_faster(dense, sparse) is False:
        return f"{times}: {change:.0%} slower here; unstructured zeros do not make dense kernels faster."
    return f"{times}: {NO_FASTER}"


def _milliseconds(found: Latency) -> str:
    return f"{1e3 * found.median:,.4g} ms ({1e3 * found.low:,.4g} to {1e3 * found.high:,.4g})"


def machine(device: torch.device | str = "cpu") -> str:
    """Processor or GPU, number of threads and torch version, for the record of a measurement."""
    device = torch.device(device)
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} thread{'s' * (threads > 1)}, torch {torch.__version__}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, named), platform.processor() or platform.machine() or "an unnamed processor")
