"""The numbers of a report: width, cost and spectra of each network, read from its parts or found now."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..analysis import Cost, Latency, Summary, Width, cost, latency, live_bits, machine, summary, width
from ..analysis.ntk import MEMORY, Spectrum, spectrum
from ..analysis.tangent import Norm
from ..core.batches import Batch
from ..core.forward import call, undisturbed
from ..core.mask import Mask
from ..core.reinitialize import built_anew
from ..data import data_config
from ..tickets.ticket import Ticket
from ..tickets.ticket_file import PACKED
from .cache import Parts, digest_of, weights_of
from .networks import Network

# of a network too large for its kernel to be formed, less is asked: hours on a CPU otherwise
SMALL = {"images": 100, "draws": 5, "top": None}
LARGE = {"images": 16, "draws": 1, "top": 10}
_PROBES = 16
_FULL = "the same without zeros"
_MOST_ROWS = 2**21  # of a large network's kernel


@dataclass(frozen=True)
class How:
    """What the command line says of the measurements."""

    images: int | None = None
    draws: int | None = None
    top: int | None = None
    norm: Norm = "batch"
    seed: int = 0
    memory: int = MEMORY
    skip: frozenset[str] = frozenset()  # of spectrum, latency
    progress: bool = True


@dataclass(frozen=True)
class Measured:
    """A network in numbers; None is what was not asked for, or cannot be."""

    network: Network
    summary: Summary
    width: Width
    cost: Cost
    bytes: Mapping[str, int]  # packed, of a pruned network; dense
    latency: Latency | None
    latency_dense: Latency | None  # of the same architecture without zeros
    machine: str
    own: Spectrum | None  # Θ at the network's own weights
    mean: Spectrum | None  # the mean of Θ over draws
    mean_dense: Spectrum | None  # of the same architecture, unpruned, on the same draws
    images: int  # that the spectra are of
    lacking: str = ""  # why there are none, where they were asked for

    @property
    def name(self) -> str:
        return self.network.name


def measure(networks: Sequence[Network], parts: Parts, how: How) -> list[Measured]:
    found = []
    with tqdm(total=len(networks), desc="report", unit="network", disable=not how.progress) as bar:
        bar.set_postfix_str("latency", refresh=True)
        times = {} if "latency" in how.skip else _times(networks, parts)
        for network in networks:
            bar.set_postfix_str(network.name, refresh=True)
            found.append(_measure(network, parts, how, times.get(network.name)))
            bar.update()
    return found


def _measure(network: Network, parts: Parts, how: How, times: tuple[Latency, Latency] | None) -> Measured:
    model, mask = network.model, network.bits
    size = tuple(data_config(model)["input_size"])
    live, _ = live_bits(model, mask, input_size=size)
    key = {"weights": weights_of(model), "mask": mask.digest() if network.mask is not None else "dense"}
    pruned = network.mask is not None
    sizes = parts.known("bytes", {**key, "told": dict(network.told)}, lambda: _bytes(network))
    own = mean = mean_dense = x = None
    lacking = ""
    if "spectrum" not in how.skip and network.batches is None:
        made = network.told.get("settings", {}).get("data")
        whose = f"made with {made}, which is not on this disk" if made else "says nothing of its data"
        lacking = f"{network.name}: {whose}; name images with --data"
    elif "spectrum" not in how.skip:
        x, draws, top = _fitting(network, how)
        told: dict[str, Any] = {**key, "images": digest_of({"x": x}), "top": top, "norm": how.norm, "seed": how.seed}
        own = _spectrum(parts, how, model, x, network.mask, {**told, "draws": 0})
        if draws:
            told |= {"draws": draws, "weights": _beyond_draws(model, mask, how)}
            mean = _spectrum(parts, how, model, x, network.mask, told)
            # of the tensors that the mask has: an excluded one is drawn for neither, or the draws would differ
            whole = Mask.ones(mask.tensors_of(model))
            mean_dense = _spectrum(parts, how, model, x, whole, {**told, "mask": "dense"}) if pruned else mean
    return Measured(
        network,
        summary(model, mask, input_size=size),
        width(model, mask, live),
        cost(model, network.mask, input_size=size, live=live if pruned else None),
        sizes,
        times[0] if times else None,
        times[1] if times and pruned else None,
        machine(next(model.parameters()).device),
        own,
        mean,
        mean_dense,
        0 if x is None else len(x),
        lacking,
    )


def _beyond_draws(model: nn.Module, mask: Mask, how: How) -> str:
    """A digest of what re-drawn weights leave as it is: shapes, tokens, excluded tensors, stored statistics if used.

    Networks that are alike in these share the dense spectrum.
    """
    redrawn = {*mask.bits, *built_anew(model, mask.bits)}
    own: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if name not in redrawn}
    own |= dict(model.named_buffers()) if how.norm == "running" else {}
    shapes = str([(name, tuple(p.shape), p.requires_grad) for name, p in model.named_parameters()])
    return f"{type(model).__name__} {digest_of(own)} {shapes}"


def _spectrum(
    parts: Parts, how: How, model: nn.Module, x: Tensor, mask: Mask | None, key: Mapping[str, Any]
) -> Spectrum:
    memo = parts.memo("spectrum", key)

    def find() -> dict[str, Any]:
        return spectrum(
            model, [x], mask, draws=key["draws"], top=key["top"], norm=how.norm, seed=how.seed,
            memory=how.memory, probes=_PROBES, progress=how.progress, memo=memo,
        ).to_dict()  # fmt: skip

    found = parts.known("spectrum", key, find)
    memo.forget()
    found.pop("exact")
    return Spectrum(**{**found, "values": tuple(found["values"])})


def _fitting(network: Network, how: How) -> tuple[Tensor, int, int | None]:
    """Images, draws and eigenvalues to ask for: as told, or what a network of this size allows."""
    assert network.batches is not None
    x = torch.cat([x for x, _ in network.batches]).to(next(network.model.parameters()).device)
    outputs = _outputs(network.model, x)
    count = sum(p.numel() for p in network.model.parameters())
    wanted = SMALL["images"] if how.images is None else how.images
    assert wanted is not None
    rows = min(len(x), wanted) * outputs
    small = 4 * rows * max(count, rows) <= 8 * how.memory  # as analysis/ntk.py has it
    usual = SMALL if small else LARGE
    images = usual["images"] if how.images is None else how.images
    if how.images is not None and how.images > len(x):
        warnings.warn(f"--images {how.images}: there are {len(x)} to prune by; see --per-class", stacklevel=2)
    if how.images is None and not small:  # a segmenter answers for every pixel, and Lanczos holds 21 vectors of all
        images = max(1, min(LARGE["images"] or 1, _MOST_ROWS // outputs))
    draws = usual["draws"] if how.draws is None else how.draws
    assert images is not None and draws is not None
    places = torch.linspace(0, len(x) - 1, min(images, len(x))).round().long()  # over all classes
    return x[places.to(x.device)], draws, usual["top"] if how.top is None else how.top


@torch.no_grad()
def _outputs(model: nn.Module, x: Tensor) -> int:
    with undisturbed(model):
        return call(model, {}, Batch(x[:1])).numel()


def _bytes(network: Network) -> dict[str, int]:
    """Of the tensors, zeros and all; and of a ticket as it is saved, in a directory that goes again."""
    tensors = {t.data_ptr(): t.nbytes for t in network.model.state_dict().values()}  # tied ones once
    sizes = {"dense": sum(tensors.values())}
    if network.mask is None:
        return sizes
    ticket = network.ticket
    if ticket is None:
        bits = Mask({name: b.cpu() for name, b in network.mask.bits.items()})
        ticket = Ticket(bits.apply_(copy.deepcopy(network.model).cpu()), bits, scorer=network.told.get("scorer"))
    with tempfile.TemporaryDirectory(prefix="hf-px-report-") as folder:
        ticket.save_pretrained(folder, layout="packed")
        return sizes | {"packed": (Path(folder) / PACKED).stat().st_size}


def _times(networks: Sequence[Network], parts: Parts) -> dict[str, tuple[Latency, Latency]]:
    """{name: a forward pass of one image, and of the same architecture without zeros}.

    Networks of a kind run in turns, in one go: times that were taken minutes apart, on a machine that does other
    things too, do not compare.
    """
    found: dict[str, tuple[Latency, Latency]] = {}
    kinds: dict[str, list[Network]] = {}
    for network in networks:
        kinds.setdefault(network.kin, []).append(network)
    for kin in kinds.values():
        where = machine(next(kin[0].model.parameters()).device)
        key = {one.name: [weights_of(one.model), one.bits.digest()] for one in kin}
        took = parts.known("latency", {"networks": key, "machine": where}, partial(_in_turns, kin))
        times = {name: Latency(**taken) for name, taken in took.items()}
        found |= {one.name: (times[one.name], times[_FULL]) for one in kin}
    return found


def _in_turns(kin: Sequence[Network]) -> dict[str, Any]:
    models = {one.name: one.bits.apply_(copy.deepcopy(one.model)) for one in kin}
    models[_FULL] = full = copy.deepcopy(kin[0].model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for w in kin[0].bits.tensors_of(full).values():
            w.copy_(torch.randn(w.shape, generator=generator).to(w) * 0.05)
    first = next(full.parameters())
    x = torch.ones(1, *data_config(full)["input_size"], device=first.device, dtype=first.dtype)
    return {name: taken.to_dict() for name, taken in latency(models, x).items()}
