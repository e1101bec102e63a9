"""Θ = J Jᵀ, the Neural Tangent Kernel of a network on N images, and E_θ[Θ] over re-drawn weights; their spectra.

    values = spectrum(model, batches, mask).values                 Θ at the model's own weights
    values = spectrum(model, batches, mask, draws=5).values        the mean of Θ over five draws of θ

NTK-SAP and the PX paper call Θ at one draw of the weights the fixed-weight NTK. NTK-SAP estimates its expectation over
draws, which depends on the mask alone.

For a small network Θ itself is computed, N·K by N·K for K outputs, with all its eigenvalues; the trace is their sum.
For a large network the largest eigenvalues come from Lanczos with products Θ v = J (Jᵀ v), and the trace from
Hutchinson's estimate E_z[zᵀ Θ z] = E_z ‖Jᵀ z‖² with random signs z; neither J nor Θ is ever formed.

Re-drawn weights are Kaiming-normal, and dense and pruned networks have the same draws. Only the mask of a ticket
matters then, so a ticket can be compared with a dense network that no longer exists.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol, get_args

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..core.batches import Batches
from ..core.mask import Mask
from ..core.prunable import prunable
from ..core.reinitialize import fresh_other_parameters, kaiming
from ..core.seeds import mix_seed
from .tangent import NormStatistics, Over, Tangent

MEMORY = 2**31  # bytes for derivatives
TOP = 32  # default number of eigenvalues of a large network
PROBES = 32  # vectors of random signs for the trace
_PASSES = 8  # passes over the images, one per block of J that fits in memory; a network that needs more is large
RESOLVED = 1e-10  # floor, as a part of the largest eigenvalue; smaller ones are rounding errors of float32 derivatives


class Memo(Protocol):
    """Storage for intermediate results; a dict is one."""

    def __getitem__(self, name: str, /) -> Tensor: ...
    def __setitem__(self, name: str, value: Tensor, /) -> None: ...


@dataclass(frozen=True)
class Spectrum:
    values: tuple[float, ...]  # the largest first: all of them, or the top ones
    size: int  # N·K, how many there are
    trace: float
    trace_error: float  # standard error of the trace; 0 where it is exact
    parameters: int  # columns of J: parameters that are left to train
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
    norm: NormStatistics = "batch",
    over: Over = "all",
    seed: int = 0,
    memory: int = MEMORY,
    probes: int = PROBES,
    progress: bool = True,
    memo: Memo | None = None,
) -> Spectrum:
    """Eigenvalues and trace of Θ on the images of `batches`. Labels are not used, and the model is not changed.

    mask      of a pruned network; None: dense
    draws     0: Θ at the model's own weights; n > 0: the mean of Θ over n draws of the weights
    top       number of largest eigenvalues, by Lanczos; None: all for a small network, 32 for a large one
    norm      statistics of BatchNorm: "batch", of these images through this network, or "running"
    over      "all" parameters that train, or the prunable "weights" only
    memory    bytes for derivatives; a network is small if J takes at most eight times that
    probes    vectors of random signs, for the trace of a large network
    memo      stores intermediate results; an interrupted call resumes if it gets the same arguments and memo
    """
    for name, value, least in (("draws", draws, 0), ("top", top, 1), ("probes", probes, 2), ("memory", memory, 2**20)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"`{name}` is {value!r}; expected an integer of at least {least:,}")
    if norm not in get_args(NormStatistics) or over not in get_args(Over):
        raise ValueError(
            f"`norm` is {norm!r}, one of {get_args(NormStatistics)}; `over` is {over!r}, one of {get_args(Over)}"
        )
    if mask is not None and not isinstance(mask, Mask):
        raise TypeError(
            f"`mask` is a {type(mask).__name__}; pass what hf_px.prune returns, or None for the dense network"
        )
    Batches(batches)  # raises for a single batch, and for an iterator, which is exhausted after one pass
    memoised = partial(_memoised, {} if memo is None else memo)
    at = partial(Tangent, model, list(batches), mask, norm=norm, over=over, memory=memory)
    points = _points(model, mask, draws, seed, at)
    first = points(0)
    count, rows = max(1, draws), first.rows
    large = 4 * rows * max(first.columns, rows) > _PASSES * memory
    if not large if top is None else top >= rows - 1:  # Lanczos cannot find all eigenvalues
        theta = torch.zeros(rows, rows, dtype=torch.float64)
        each = len(first.batch.x) * math.ceil(first.columns / _block_width(first))
        with _bar(progress, each * count, "NTK", "image") as bar:
            for i in range(count):
                theta += memoised(f"kernel-{i}", partial(_drawn, points, i, bar.update))
                bar.update((i + 1) * each - bar.n)  # also for a kernel that was in the memo
        theta /= count
        values = torch.linalg.eigvalsh(theta).flip(0).clamp(min=0.0)[:top]
        trace, error = float(theta.diagonal().sum()), 0.0
    else:
        tangents = [first, *(points(i) for i in range(1, count))]
        values = _lanczos(tangents, min(top or TOP, rows - 2), progress, memoised)
        trace, error = _hutchinson(tangents, probes, seed, progress, memoised)
    return Spectrum(tuple(map(float, values)), rows, trace, error, first.columns, draws)


def kernel(
    model: nn.Module,
    batches: Iterable[Any],
    mask: Mask | None = None,
    *,
    norm: NormStatistics = "batch",
    over: Over = "all",
) -> Tensor:
    """Θ itself in float64, N·K by N·K; row n·K + k is output k on image n."""
    return _kernel(Tangent(model, batches, mask, norm=norm, over=over, memory=MEMORY), lambda n: None)


def distance(dense: Spectrum, pruned: Spectrum) -> float:
    """mean_i |log10 λ_i(dense) - log10 λ_i(pruned)|: by how many decades the eigenvalues differ, rank by rank.

    Eigenvalues below 1e-10 of the dense network's largest are rounding errors and count as 1e-10 of it. If a spectrum
    has its largest eigenvalues only, the ranks that both spectra have are compared.
    """
    apart = _decades(dense, pruned)
    return math.fsum(apart) / len(apart)


@dataclass(frozen=True)
class LostRanks:
    """Directions that the dense network learns and the pruned one cannot, for example of a class without weights."""

    ranks: int  # eigenvalues below the floor, where the dense network's are above it
    share: float  # the part of the distance that these ranks make up; it depends on the floor
    rest: float  # the distance over all other ranks


def lost_ranks(dense: Spectrum, pruned: Spectrum) -> LostRanks:
    """The part of `distance` that is due to lost eigenvalues, which all count as the floor."""
    apart, floor = _decades(dense, pruned), RESOLVED * dense.values[0]
    gone = [a > floor >= b for a, b in zip(dense.values, pruned.values)]
    of_gone = math.fsum(d for d, g in zip(apart, gone) if g)
    rest = [d for d, g in zip(apart, gone) if not g]
    total = math.fsum(apart)
    return LostRanks(sum(gone), of_gone / total if total else 0.0, math.fsum(rest) / len(rest) if rest else 0.0)


def _decades(dense: Spectrum, pruned: Spectrum) -> list[float]:
    """|log10 λ_i(dense) - log10 λ_i(pruned)| by rank."""
    if dense.size != pruned.size:
        raise ValueError(
            f"spectra of {dense.size:,} and {pruned.size:,} eigenvalues do not compare: images or outputs differ"
        )
    if dense.draws != pruned.draws:
        raise ValueError(f"spectra over {dense.draws} and {pruned.draws} draws of the weights do not compare")
    floor = RESOLVED * dense.values[0]
    if not floor > 0:
        raise ValueError("the dense network's kernel is 0, so there is no distance to it")
    pairs = [(max(a, floor), max(b, floor)) for a, b in zip(dense.values, pruned.values)]
    return [abs(math.log10(a / b)) for a, b in pairs]


def _points(
    model: nn.Module, mask: Mask | None, draws: int, seed: int, at: Callable[..., Tangent]
) -> Callable[[int], Tangent]:
    """Function that returns the network at draw i of its weights, or at its own weights if `draws` is 0."""
    if not draws:
        return lambda i: at()
    weights = prunable(model) if mask is None else mask.tensors_of(model)
    anew = fresh_other_parameters(model, weights)

    def point(i: int) -> Tangent:
        generator = torch.Generator().manual_seed(mix_seed(seed, i))
        like = {name: w.detach().float() if w.dtype.itemsize < 4 else w.detach() for name, w in weights.items()}
        return at(values={**anew, **kaiming(like, generator)})

    return point


def _block_width(tangent: Tangent) -> int:
    """Number of columns of J that fit in memory."""
    return max(1, tangent.memory // (4 * tangent.rows))


def _drawn(points: Callable[[int], Tangent], i: int, tick: Callable[[int], Any]) -> Tensor:
    return _kernel(points(i), tick).cpu()


def _kernel(tangent: Tangent, tick: Callable[[int], Any]) -> Tensor:
    theta = torch.zeros(tangent.rows, tangent.rows, dtype=torch.float64, device=tangent.device)
    width = _block_width(tangent)
    for start in range(0, tangent.columns, width):
        block = tangent.block(start, min(start + width, tangent.columns), tick)
        for part in block.split(2**13, dim=1):
            part = part.double()  # eigenvalues span ten decades and more; float32 sums have seven digits
            theta.addmm_(part, part.mT)
    return theta


Memoised = Callable[[str, Callable[[], Tensor]], Tensor]


def _memoised(memo: Memo, name: str, find: Callable[[], Tensor]) -> Tensor:
    try:
        return memo[name]
    except KeyError:
        memo[name] = found = find()
        return found


def _lanczos(tangents: Sequence[Tangent], top: int, progress: bool, memoised: Memoised) -> np.ndarray:
    """Resumable: with the products in `memo`, ARPACK repeats the same steps."""
    rows = tangents[0].rows
    with _bar(progress, None, "NTK, Lanczos", "product") as bar:

        def product(v: np.ndarray) -> np.ndarray:
            vector = torch.from_numpy(v.reshape(-1).astype(np.float64))
            name = f"product-{hashlib.sha256(vector.numpy().tobytes()).hexdigest()[:32]}"
            found = memoised(name, lambda: torch.stack([t.jvp(t.vjp(vector)).double().cpu() for t in tangents]).mean(0))
            bar.update()
            return found.numpy()

        start = np.random.default_rng(0).standard_normal(rows)
        operator = LinearOperator((rows, rows), matvec=product, dtype=np.float64)
        # 1e-5, because the products are computed in float32
        found = eigsh(operator, k=top, which="LA", v0=start, tol=1e-5, return_eigenvectors=False)
    return np.sort(found)[::-1].clip(min=0.0)


def _hutchinson(
    tangents: Sequence[Tangent], probes: int, seed: int, progress: bool, memoised: Memoised
) -> tuple[float, float]:
    """Mean of zᵀ Θ z over the probes and its standard error, which leaves out the variation between draws."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    with _bar(progress, probes, "NTK, trace", "probe") as bar:
        for i in range(probes):
            z = torch.randint(2, (tangents[0].rows,), generator=generator).double() * 2 - 1
            found.append(float(memoised(f"probe-{i}", partial(_square, tangents, z))))
            bar.update()
    return float(np.mean(found)), float(np.std(found, ddof=1) / math.sqrt(probes))


def _square(tangents: Sequence[Tangent], z: Tensor) -> Tensor:
    """zᵀ Θ z, averaged over draws."""
    squares = [sum(float(g.double().square().sum()) for g in t.vjp(z).values()) for t in tangents]
    return torch.tensor(math.fsum(squares) / len(tangents), dtype=torch.float64)


def _bar(progress: bool, total: int | None, what: str, unit: str) -> tqdm:
    return tqdm(total=total, desc=what, unit=unit, disable=not progress, delay=1.0, leave=False)
