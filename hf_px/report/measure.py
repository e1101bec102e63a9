"""The measurements of a report: width, cost, latency and spectra of each network, from the cache or computed now."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..analysis.cost import Cost, cost
from ..analysis.latency import Latency, latency, machine
from ..analysis.layer_counts import count_layers, live_bits
from ..analysis.ntk import MEMORY, Spectrum, spectrum
from ..analysis.summary import Summary
from ..analysis.tangent import NormStatistics
from ..core.batches import Batch
from ..core.errors import UnsupportedModelError
from ..core.forward import call, undisturbed
from ..core.mask import Mask
from ..core.reinitialize import fresh_other_parameters
from ..runtime.fast import FastModel, fast
from ..runtime.kernels import RuntimeUnavailableError
from ..tickets.ticket import Ticket
from ..tickets.ticket_file import PACKED
from .cache import ReportCache, digest_of, weights_digest
from .networks import Network

_PROBES = 16
_WITHOUT_ZEROS = "the same without zeros"
_MOST_ROWS = 2**21  # largest kernel of a large network


class SpectrumSize(NamedTuple):
    images: int
    draws: int
    top: int | None


# a network is large if its kernel cannot be formed; on a CPU the defaults of a small one would take hours
SMALL_NETWORK = SpectrumSize(images=100, draws=5, top=None)
LARGE_NETWORK = SpectrumSize(images=16, draws=1, top=10)


@dataclass(frozen=True)
class MeasureOptions:
    """What to measure; None: a default that depends on the size of the network."""

    images: int | None = None
    draws: int | None = None
    top: int | None = None
    norm: NormStatistics = "batch"
    memory: int = MEMORY
    skip: frozenset[str] = frozenset()  # "spectrum", "latency"
    runtime: str = "auto"  # for latency: "dense", "sparse", or "auto", sparse where that is possible
    progress: bool = True


@dataclass(frozen=True)
class Spectra:
    """The spectra of a network; without `own`, `reason` explains why, unless they were skipped."""

    own: Spectrum | None = None  # Θ at the network's own weights
    mean: Spectrum | None = None  # the mean of Θ over draws of the weights
    mean_dense: Spectrum | None = None  # the mean for the unpruned architecture, on the same draws
    images: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Measured:
    """A network and its measurements."""

    network: Network
    summary: Summary
    cost: Cost
    bytes: Mapping[str, int]  # "dense", and "packed" for a pruned network
    latency: Latency | None
    latency_dense: Latency | None  # latency of the same architecture without zeros
    sparse_runtime: bool  # True if `latency` is that of the sparse runtime
    machine: str
    spectra: Spectra

    @property
    def name(self) -> str:
        return self.network.name


def measure(networks: Sequence[Network], cache: ReportCache, options: MeasureOptions) -> list[Measured]:
    found = []
    with tqdm(total=len(networks), desc="report", unit="network", disable=not options.progress) as bar:
        bar.set_postfix_str("latency", refresh=True)
        times = {} if "latency" in options.skip else _latencies(networks, cache, options.runtime)
        for network in networks:
            bar.set_postfix_str(network.name, refresh=True)
            found.append(_measure(network, cache, options, times.get(network.name)))
            bar.update()
    return found


def _measure(
    network: Network, cache: ReportCache, options: MeasureOptions, times: tuple[Latency, Latency, bool] | None
) -> Measured:
    model, mask, size = network.model, network.bits, network.input_size
    pruned = network.mask is not None
    live, note = live_bits(model, mask, input_size=size)
    key = {"weights": weights_digest(model), "mask": mask.digest() if pruned else "dense"}
    return Measured(
        network,
        Summary(count_layers(model, mask, live), note),
        cost(model, network.mask, input_size=size, live=live if pruned else None),
        cache.get("bytes", {**key, "header": dict(network.header)}, lambda: _bytes(network)),
        times[0] if times else None,
        times[1] if times and pruned else None,
        bool(times and pruned and times[2]),
        machine(next(model.parameters()).device),
        Spectra() if "spectrum" in options.skip else _spectra(network, cache, options, key),
    )


def _spectra(network: Network, cache: ReportCache, options: MeasureOptions, key: Mapping[str, Any]) -> Spectra:
    if network.batches is None:
        data = network.header.get("settings", {}).get("data")
        why = f"it was made with {data}, which is not on this disk" if data else "it does not name its data"
        return Spectra(reason=f"{network.name}: {why}; name images with --data")
    model, mask = network.model, network.bits
    x, draws, top = _spectrum_size(network, options)
    key = {**key, "images": digest_of({"x": x}), "top": top, "norm": options.norm}
    find = partial(_spectrum, cache, options, model, x)
    own = find(network.mask, {**key, "draws": 0})
    if not draws:
        return Spectra(own, images=len(x))
    key = {**key, "draws": draws, "weights": _digest_without_redrawn(model, mask, options)}
    mean = mean_dense = find(network.mask, key)
    if network.mask is not None:
        # a mask of the same tensors: an excluded tensor must be re-drawn for neither, or the draws would differ
        mean_dense = find(Mask.ones(mask.tensors_of(model)), {**key, "mask": "dense"})
    return Spectra(own, mean, mean_dense, len(x))


def _digest_without_redrawn(model: nn.Module, mask: Mask, options: MeasureOptions) -> str:
    """Digest of what re-drawing leaves unchanged: shapes, tokens, excluded tensors, and stored statistics if used.

    Networks for which it is equal share the dense spectrum.
    """
    redrawn = {*mask.bits, *fresh_other_parameters(model, mask.bits)}
    own: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if name not in redrawn}
    own |= dict(model.named_buffers()) if options.norm == "running" else {}
    shapes = str([(name, tuple(p.shape), p.requires_grad) for name, p in model.named_parameters()])
    return f"{type(model).__name__} {digest_of(own)} {shapes}"


def _spectrum(
    cache: ReportCache, options: MeasureOptions, model: nn.Module, x: Tensor, mask: Mask | None, key: Mapping[str, Any]
) -> Spectrum:
    memo = cache.tensors("spectrum", key)

    def compute() -> dict[str, Any]:
        return spectrum(
            model, [x], mask, draws=key["draws"], top=key["top"], norm=options.norm, memory=options.memory,
            probes=_PROBES, progress=options.progress, memo=memo,
        ).to_dict()  # fmt: skip

    found = cache.get("spectrum", key, compute)
    memo.delete()
    found.pop("exact")
    return Spectrum(**{**found, "values": tuple(found["values"])})


def _spectrum_size(network: Network, options: MeasureOptions) -> tuple[Tensor, int, int | None]:
    """Images, draws and number of eigenvalues: as asked for, or what the size of the network allows."""
    assert network.batches is not None
    x = torch.cat([x for x, _ in network.batches]).to(next(network.model.parameters()).device)
    outputs = _num_outputs(network.model, x)
    count = sum(p.numel() for p in network.model.parameters())
    rows = min(len(x), options.images or SMALL_NETWORK.images) * outputs
    small = 4 * rows * max(count, rows) <= 8 * options.memory  # the same limit as in analysis/ntk.py
    default = SMALL_NETWORK if small else LARGE_NETWORK
    if options.images is not None and options.images > len(x):
        warnings.warn(
            f"--images {options.images}: there are only {len(x)} examples to prune with; see --per-class", stacklevel=2
        )
    images = options.images or default.images
    if options.images is None and not small:  # Lanczos holds 21 vectors, and a segmenter has an output per pixel
        images = max(1, min(images, _MOST_ROWS // outputs))
    indices = torch.linspace(0, len(x) - 1, min(images, len(x))).round().long()  # spread over all classes
    draws = default.draws if options.draws is None else options.draws
    return x[indices.to(x.device)], draws, options.top or default.top


@torch.no_grad()
def _num_outputs(model: nn.Module, x: Tensor) -> int:
    with undisturbed(model):
        return call(model, {}, Batch(x[:1])).numel()


def _bytes(network: Network) -> dict[str, int]:
    """Bytes of the dense tensors, and of a pruned network saved as a packed ticket in a temporary directory."""
    tensors = {t.data_ptr(): t.nbytes for t in network.model.state_dict().values()}  # tied tensors once
    sizes = {"dense": sum(tensors.values())}
    if network.mask is None:
        return sizes
    ticket = network.ticket
    if ticket is None:
        bits = network.mask.to("cpu")
        ticket = Ticket(bits.apply_(copy.deepcopy(network.model).cpu()), bits, scorer=network.header.get("scorer"))
    with tempfile.TemporaryDirectory(prefix="hf-px-report-") as folder:
        ticket.save_pretrained(folder, layout="packed")
        return sizes | {"packed": (Path(folder) / PACKED).stat().st_size}


def _latencies(
    networks: Sequence[Network], cache: ReportCache, runtime: str
) -> dict[str, tuple[Latency, Latency, bool]]:
    """{name: latency for one image, that of the same architecture without zeros, whether the first ran sparse}.

    Comparable networks run in turns, in one go: times taken minutes apart on a busy machine do not compare.
    """
    found: dict[str, tuple[Latency, Latency, bool]] = {}
    groups: dict[str, list[Network]] = {}
    for network in networks:
        groups.setdefault(network.comparable_key, []).append(network)
    for group in groups.values():
        where = machine(next(group[0].model.parameters()).device)
        key = {one.name: [weights_digest(one.model), one.bits.digest()] for one in group}
        full_key = {"networks": key, "machine": where, "runtime": runtime}
        times = cache.get("latency", full_key, partial(_time_in_turns, group, runtime))
        latencies = {name: Latency(**each) for name, each in times["latencies"].items()}
        full = latencies[_WITHOUT_ZEROS]
        found |= {one.name: (latencies[one.name], full, one.name in times["sparse"]) for one in group}
    return found


def _time_in_turns(group: Sequence[Network], runtime: str) -> dict[str, Any]:
    models = {one.name: one.bits.apply_(copy.deepcopy(one.model)) for one in group}
    models |= {one.name: _fast(models[one.name], one, runtime) for one in group if one.mask is not None}
    models[_WITHOUT_ZEROS] = full = copy.deepcopy(group[0].model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for w in group[0].bits.tensors_of(full).values():
            w.copy_(torch.randn(w.shape, generator=generator).to(w) * 0.05)
    first = next(full.parameters())
    x = torch.ones(1, *group[0].input_size, device=first.device, dtype=first.dtype)
    latencies = {name: asdict(found) for name, found in latency(models, x).items()}
    return {"latencies": latencies, "sparse": [name for name, model in models.items() if isinstance(model, FastModel)]}


def _fast(model: nn.Module, network: Network, runtime: str) -> nn.Module:
    """The model in the sparse runtime; with "auto", the model itself where that is not possible."""
    if runtime == "dense":
        return model
    try:
        return fast(model.eval(), input_size=network.input_size, progress=False)
    except (RuntimeUnavailableError, UnsupportedModelError):
        if runtime == "sparse":
            raise
        return model
