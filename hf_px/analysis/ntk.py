"""Θ = J Jᵀ, the Neural Tangent Kernel of a network on N images, and E_θ[Θ] over re-drawn weights; their spectra.

    values = spectrum(model, batches, mask).values                 Θ at the model's own weights
    values = spectrum(model, batches, mask, draws=5).values        the mean of Θ over five draws of θ

NTK-SAP and the PX paper call Θ at one given draw of the weights the fixed-weight NTK; NTK-SAP estimates its expectation
over draws, in which only the mask counts.

A small network's Θ is formed whole, N·K by N·K for K outputs: every eigenvalue, and the trace is their sum. Of a large
one the largest eigenvalues come by Lanczos, from products Θ v = J (Jᵀ v), and the trace by Hutchinson, E_z[zᵀ Θ z] =
E_z ‖Jᵀ z‖² with z of random signs; neither J nor Θ is ever formed.

Re-drawn weights are Kaiming-normal; dense and pruned networks see the same draws, image for image. Weights of a
ticket do not enter then, only its mask: so a ticket compares with a dense network that was thrown away long ago.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..core.batches import Batches
from ..core.mask import Mask
from ..core.prunable import prunable
from ..core.reinitialize import built_anew, kaiming
from .tangent import Norm, Over, Tangent

MEMORY = 2**31  # bytes for derivatives
TOP = 32  # eigenvalues of a large network, unless asked for more
PROBES = 32  # random signs for a trace
_PASSES = 8  # over the images, to form J by blocks that fit in memory: beyond that a network is large
RESOLVED = 1e-10  # of the largest eigenvalue: below that lies what float32 derivatives round off


@dataclass(frozen=True)
class Spectrum:
    values: tuple[float, ...]  # the largest first: all of them, or the top ones
    size: int  # N·K, how many there are
    trace: float
    trace_error: float  # standard error of the trace; 0 where it is exact
    parameters: int  # columns of J: what is left to train
    draws: int  # 0: the network's own weights

    @property
    def exact(self) -> bool:
        return len(self.values) == self.size

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "values": list(self.values), "exact": self.exact}


def spectrum(
    model: nn.Module,
    batches: Iterable[Any],
    mask: Mask | None = None,
    *,
    draws: int = 0,
    top: int | None = None,
    norm: Norm = "batch",
    over: Over = "all",
    seed: int = 0,
    memory: int = MEMORY,
    probes: int = PROBES,
    progress: bool = True,
    memo: MutableMapping[str, Tensor] | None = None,
) -> Spectrum:
    """Eigenvalues and trace of Θ on the images of `batches`, labels unread; the model stays as it was.

    mask      of a pruned network; None: dense
    draws     0: Θ at the model's own weights; more: the mean of Θ over so many draws of them
    top       so many of the largest eigenvalues, by Lanczos; None: all of a small network's, the top 32 of a large one
    norm      statistics of BatchNorm: "batch", those of the images through this network, or "running"
    over      "all" that trains, or prunable "weights" alone
    memory    bytes for derivatives; a network is small if J is no more than eight times that
    probes    vectors of random signs, for the trace of a large network
    memo      what was found so far, by name: a call that was interrupted goes on, given the same arguments and memo
    """
    for name, value, least in (("draws", draws, 0), ("top", top, 1), ("probes", probes, 2), ("memory", memory, 2**20)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"{name} is {value!r}; expected a whole number from {least:,} up")
    if norm not in get_args(Norm) or over not in get_args(Over):
        raise ValueError(f"norm is {norm!r}, one of {get_args(Norm)}; over is {over!r}, one of {get_args(Over)}")
    if mask is not None and not isinstance(mask, Mask):
        raise TypeError(f"mask is a {type(mask).__name__}; hf_px.prune gives one, None is the dense network")
    Batches(batches)  # an error for what is a single batch, or used up after one pass
    known = partial(_known, {} if memo is None else memo)
    points = _points(model, list(batches), mask, draws, norm, over, seed, memory)
    first = points(0)
    count, rows = max(1, draws), first.rows
    large = 4 * rows * max(first.columns, rows) > _PASSES * memory
    if not large if top is None else top >= rows - 1:  # Lanczos finds fewer than all
        theta = torch.zeros(rows, rows, dtype=torch.float64)
        each = len(first.batch.x) * _passes(first)
        with _bar(progress, each * count, "NTK", "image") as bar:
            for i in range(count):
                theta += known(f"kernel-{i}", partial(_drawn, points, i, bar.update))
                bar.update((i + 1) * each - bar.n)  # of one that was known, too
        theta /= count
        values = torch.linalg.eigvalsh(theta).flip(0).clamp(min=0.0)[:top]
        trace, error = float(theta.diagonal().sum()), 0.0
    else:
        tangents = [first, *(points(i) for i in range(1, count))]
        values = _lanczos(tangents, min(top or TOP, rows - 2), progress, known)
        trace, error = _hutchinson(tangents, probes, seed, progress, known)
    return Spectrum(tuple(map(float, values)), rows, trace, error, first.columns, draws)


def kernel(
    model: nn.Module,
    batches: Iterable[Any],
    mask: Mask | None = None,
    *,
    norm: Norm = "batch",
    over: Over = "all",
    memory: int = MEMORY,
) -> Tensor:
    """Θ itself in float64, N·K by N·K; row n·K + k is output k on image n."""
    return _kernel(Tangent(model, batches, mask, norm=norm, over=over, memory=memory), lambda n: None)


def distance(dense: Spectrum, pruned: Spectrum) -> float:
    """mean_i |log10 λ_i(dense) - log10 λ_i(pruned)|: by how many decades the eigenvalues differ, rank by rank.

    What is below 1e-10 of the dense network's largest counts as that: rounding, not kernel. Of spectra that are not
    whole, the ranks that both have.
    """
    apart = _apart(dense, pruned)
    return math.fsum(apart) / len(apart)


@dataclass(frozen=True)
class Lost:
    """Directions in which the dense network learns and the pruned one cannot, as when a class has no weight."""

    ranks: int  # eigenvalues below the floor, where the dense network's are above
    share: float  # of the distance, that these make: the floor decides it
    rest: float  # the distance over all other ranks


def lost(dense: Spectrum, pruned: Spectrum) -> Lost:
    """What of `distance` is due to eigenvalues that are gone: they count as the floor, whatever they are."""
    apart, floor = _apart(dense, pruned), RESOLVED * dense.values[0]
    gone = [a > floor >= b for a, b in zip(dense.values, pruned.values)]
    of_gone = math.fsum(d for d, g in zip(apart, gone) if g)
    rest = [d for d, g in zip(apart, gone) if not g]
    whole = math.fsum(apart)
    return Lost(sum(gone), of_gone / whole if whole else 0.0, math.fsum(rest) / len(rest) if rest else 0.0)


def _apart(dense: Spectrum, pruned: Spectrum) -> list[float]:
    """|log10 λ_i(dense) - log10 λ_i(pruned)| by rank."""
    if dense.size != pruned.size:
        raise ValueError(
            f"spectra of {dense.size:,} and {pruned.size:,} eigenvalues do not compare: other images or outputs"
        )
    if dense.draws != pruned.draws:
        raise ValueError(f"spectra over {dense.draws} and {pruned.draws} draws of the weights do not compare")
    floor = RESOLVED * dense.values[0]
    if not floor > 0:
        raise ValueError("the dense network's kernel is 0: it has no spectrum to be near to")
    pairs = [(max(a, floor), max(b, floor)) for a, b in zip(dense.values, pruned.values)]
    return [abs(math.log10(a / b)) for a, b in pairs]


def _points(
    model: nn.Module, batches: list[Any], mask: Mask | None, draws: int, norm: Norm, over: Over, seed: int, memory: int
) -> Callable[[int], Tangent]:
    """The network at draw i of its weights, or at its own."""
    weights = prunable(model) if mask is None else mask.tensors_of(model)
    anew = built_anew(model, weights) if draws else {}

    def point(i: int) -> Tangent:
        generator = torch.Generator().manual_seed((seed * 1_000_003 + i) % (2**63 - 1))
        like = {name: w.detach().float() if w.dtype.itemsize < 4 else w.detach() for name, w in weights.items()}
        values = {**anew, **kaiming(like, generator)} if draws else None
        return Tangent(model, batches, mask, values=values, norm=norm, over=over, memory=memory)

    return point


def _passes(tangent: Tangent) -> int:
    return -(-tangent.columns // _width(tangent))


def _width(tangent: Tangent) -> int:
    """How many columns of J fit in memory."""
    return max(1, tangent.memory // (4 * tangent.rows))


def _drawn(points: Callable[[int], Tangent], i: int, tick: Callable[[int], Any]) -> Tensor:
    return _kernel(points(i), tick).cpu()


def _kernel(tangent: Tangent, tick: Callable[[int], Any]) -> Tensor:
    theta = torch.zeros(tangent.rows, tangent.rows, dtype=torch.float64, device=tangent.device)
    width = _width(tangent)
    for start in range(0, tangent.columns, width):
        block = tangent.block(start, min(start + width, tangent.columns), tick)
        for part in block.split(2**13, dim=1):
            part = part.double()  # eigenvalues span ten decades and more, and float32 sums have seven
            theta.addmm_(part, part.mT)
    return theta


Known = Callable[[str, Callable[[], Tensor]], Tensor]


def _known(memo: MutableMapping[str, Tensor], name: str, find: Callable[[], Tensor]) -> Tensor:
    if name not in memo:
        memo[name] = find()
    return memo[name]


def _lanczos(tangents: Sequence[Tangent], top: int, progress: bool, known: Known) -> np.ndarray:
    """ARPACK's steps depend on nothing but the products: with those it knows, it comes to where it was."""
    rows = tangents[0].rows
    with _bar(progress, None, "NTK, Lanczos", "product") as bar:

        def product(v: np.ndarray) -> np.ndarray:
            vector = torch.from_numpy(v.reshape(-1).astype(np.float64))
            name = f"product-{hashlib.sha256(vector.numpy().tobytes()).hexdigest()[:32]}"
            found = known(name, lambda: torch.stack([t.forth(t.back(vector)).double().cpu() for t in tangents]).mean(0))
            bar.update()
            return found.numpy()

        start = np.random.default_rng(0).standard_normal(rows)
        operator = LinearOperator((rows, rows), matvec=product, dtype=np.float64)
        # 1e-5: the products themselves are float32's
        found = eigsh(operator, k=top, which="LA", v0=start, tol=1e-5, return_eigenvectors=False)
    return np.sort(found)[::-1].clip(min=0.0)


def _hutchinson(
    tangents: Sequence[Tangent], probes: int, seed: int, progress: bool, known: Known
) -> tuple[float, float]:
    """The mean of zᵀ Θ z and its standard error; of the draws that are there, not of the choice of draws."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    with _bar(progress, probes, "NTK, trace", "probe") as bar:
        for i in range(probes):
            z = torch.randint(2, (tangents[0].rows,), generator=generator).double() * 2 - 1
            found.append(float(known(f"probe-{i}", partial(_square, tangents, z))))
            bar.update()
    return float(np.mean(found)), float(np.std(found, ddof=1) / math.sqrt(probes))


def _square(tangents: Sequence[Tangent], z: Tensor) -> Tensor:
    """zᵀ Θ z, the mean over draws."""
    squares = [sum(float(g.double().square().sum()) for g in t.back(z).values()) for t in tangents]
    return torch.tensor(math.fsum(squares) / len(tangents), dtype=torch.float64)


def _bar(progress: bool, total: int | None, what: str, unit: str) -> tqdm:
    return tqdm(total=total, desc=what, unit=unit, disable=not progress, delay=1.0, leave=False)
