"""Spectra: eigenvalues of the NTK by rank, and how far a pruned network's are from the dense one's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from ..analysis.ntk import RESOLVED, Lost, Spectrum, distance, lost
from ..figures import Table, lines
from ..figures.table import Cell
from .document import Figure, Section
from .measure import Measured
from .wording import end, names, titled
from .wording import some as said

_HEAD = (
    "network", "distance, own weights", "distance, mean of draws", "largest eigenvalue, own weights",
    "trace, own weights", "trace, ± error", "trace against dense, mean of draws",
    "largest against dense, mean of draws",
)  # fmt: skip
_FORMATS = ("", ".3f", ".3f", ".4g", ".4g", ".2g", ".3g", ".3g")


def spectra(groups: Sequence[Sequence[Measured]]) -> Section | None:
    figures: list[Figure] = []
    rows: list[tuple[Cell, ...]] = []
    words: list[str] = []
    told: list[str] = []
    for i, group in enumerate(groups):
        some = [one for one in group if one.own is not None]
        if not some:
            continue
        own = {one.name: one.own for one in some if one.own is not None}
        mean = _with_dense({one.name: one.mean for one in some if one.mean is not None}, some)
        order = names(group)
        title = titled("NTK at the networks' own weights", group, groups)
        figures.append(_figure(f"spectrum-own{end(i, groups)}", title, own, order))
        if mean:
            draws = next(iter(mean.values())).draws
            title = titled(f"NTK, mean over {draws} draw{'s' * (draws > 1)} of the weights", group, groups)
            figures.append(_figure(f"spectrum-mean{end(i, groups)}", title, mean, order))
        rows += [_row(one, some) for one in some]
        told.append(_images(some[0]))
        words += _nearest(some)
        words += [sentence for one in some for sentence in _gone(one, some)]
        words += [sentence for one in some for sentence in _cut_from(one, some)]
        alone = [one.name for one in some if one.network.mask is not None and own_distance(one, some) is None]
        if alone:
            whose = "their dense networks are" if len(alone) > 1 else "its dense network is"
            words.append(f"{said(alone)}: {whose} not on this page; name that model too to compare with it.")
    lacking = [f"No spectrum of {one.lacking}." for group in groups for one in group if one.lacking]
    if not rows:
        return Section("spectrum", "Spectrum", tuple(lacking)) if lacking else None
    first = [
        f"The Neural Tangent Kernel says how fast a network learns, direction by direction, one eigenvalue each; here "
        f"{'; '.join(dict.fromkeys(told))}. Own weights: what training goes on from."
    ]
    if any(one.mean is not None for group in groups for one in group):
        first.append(
            "Mean of draws: over re-drawn Kaiming-normal weights, the same for every network, so that only the mask "
            "counts; a ticket is measured against a dense network that need not be at hand."
        )
    first.append(
        "Distance: by how many decades the eigenvalues differ from the dense network's, rank by rank, on average; 0 is "
        "the same spectrum, 1 is ten times off. By itself it says nothing of accuracy."
    )
    shown = [i for i in range(len(_HEAD)) if any(row[i] is not None for row in rows)]
    table = Table(
        tuple(_HEAD[i] for i in shown),
        tuple(tuple(row[i] for i in shown) for row in rows),
        tuple(_FORMATS[i] for i in shown),
    )
    return Section("spectrum", "Spectrum", (*first, *words, *lacking), tuple(figures), table)


def own_distance(one: Measured, found: Sequence[Measured]) -> float | None:
    """To the dense network of the same weights; for a ticket, to a dense network of its kind, if one is there."""
    dense = _dense_of(one, found)
    return None if dense is None or dense.own is None or one.own is None else distance(dense.own, one.own)


def _dense_of(one: Measured, found: Sequence[Measured]) -> Measured | None:
    if one.own is None or one.network.mask is None:
        return None
    for other in found:
        ours = one.network.dense or (other.name if other.network.kin == one.network.kin else None)
        if other.network.mask is None and other.name == ours and other.own is not None:
            return other if other.own.size == one.own.size else None
    return None


def _cut_from(one: Measured, found: Sequence[Measured]) -> list[str]:
    """Of a ticket beside a dense network: whether it has that one's weights, or has been trained since."""
    dense = _dense_of(one, found)
    if dense is None or one.network.dense is not None:
        return []
    mask, theirs = one.network.bits, one.network.bits.tensors_of(dense.network.model)
    mine = mask.tensors_of(one.network.model)
    same = all(bool((mine[name][bits] == theirs[name][bits]).all()) for name, bits in mask.bits.items())
    what = "whose weights it has" if same else "which has other weights, so that it tells of those too, not of the mask"
    return [f"{one.name}: own weights are compared with {dense.name}, {what}{'' if same else ' alone'}."]


def _lost(one: Measured, found: Sequence[Measured]) -> dict[str, Lost]:
    """By way of measuring: what of the distance is due to eigenvalues that are gone, where any are."""
    if one.network.mask is None:
        return {}
    dense = _dense_of(one, found)
    pairs = {"own weights": (dense.own if dense else None, one.own), "mean of draws": (one.mean_dense, one.mean)}
    told = {what: lost(whole, part) for what, (whole, part) in pairs.items() if whole is not None and part is not None}
    return {what: n for what, n in told.items() if n.ranks}


def _gone(one: Measured, found: Sequence[Measured]) -> list[str]:
    """Where eigenvalues are gone, how much of the distance that is: it would hide what the others do."""
    assert one.own is not None
    return [
        f"{one.name}, {what}: {n.ranks:,} of {len(one.own.values):,} eigenvalues are gone, below 10⁻¹⁰ of the dense "
        f"network's largest; they make {n.share:.0%} of the distance, {n.rest:.2f} over the rest."
        for what, n in _lost(one, found).items()
    ]


def mean_distance(one: Measured) -> float | None:
    if one.mean is None or one.mean_dense is None or one.network.mask is None:
        return None
    return distance(one.mean_dense, one.mean)


def against_dense(one: Measured) -> tuple[float | None, float | None]:
    """Trace and largest eigenvalue over the dense network's, means of draws; 1 is the same."""
    if one.mean is None or one.mean_dense is None or one.network.mask is None:
        return None, None
    return one.mean.trace / one.mean_dense.trace, one.mean.values[0] / one.mean_dense.values[0]


def _row(one: Measured, group: Sequence[Measured]) -> tuple[Cell, ...]:
    assert one.own is not None
    error = None if one.own.exact else one.own.trace_error
    near = own_distance(one, group), mean_distance(one)
    return one.name, *near, one.own.values[0], one.own.trace, error, *against_dense(one)


def _images(one: Measured) -> str:
    assert one.own is not None
    words = f"on {one.images} image{'s' * (one.images > 1)} of {one.network.data}, "
    words += f"{one.own.size // one.images:,} outputs each"
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in one.network.model.modules()):
        words += ", statistics of BatchNorm held constant"
    if not one.own.exact:
        words += (
            f"; the first {len(one.own.values)} of {one.own.size:,} eigenvalues, by Lanczos, and distances are over "
            "these; the trace is an estimate, with its standard error"
        )
    return words


def _with_dense(mean: dict[str, Spectrum], group: Sequence[Measured]) -> dict[str, Spectrum]:
    """The dense network's spectrum first, where no dense network is on the page."""
    dense = next((one.mean_dense for one in group if one.mean_dense is not None), None)
    there = any(one.network.mask is None for one in group)
    return mean if there or dense is None else {"dense": dense, **mean}


def _figure(name: str, title: str, found: Mapping[str, Spectrum], order: Sequence[str]) -> Figure:
    # what is below lies in the rounding of the largest, and would squeeze the rest into the top of the picture
    floor = RESOLVED * max(s.values[0] for s in found.values())
    series = {one: [(i, v) for i, v in enumerate(s.values, 1) if v > floor] for one, s in found.items()}
    most = max(len(s.values) for s in found.values())
    size = max(s.size for s in found.values())
    part = "" if most == size else f", the first {most} of {size:,}"
    rows = [(i + 1, *(s.values[i] if i < len(s.values) else None for s in found.values())) for i in range(most)]
    alt = "; ".join(_alt(one, s, len(series[one])) for one, s in found.items())
    return Figure(
        name,
        title,
        lines(series, title=title, x=f"rank{part}", y="eigenvalue", log_y=True, order=order, alt=alt),
        Table(("rank", *found), tuple(rows), (",d", *(".4g" for _ in found))),
    )


def _without(n: Lost | None) -> str:
    return f", without lost ranks {n.rest:.2f}" if n else ""


def _alt(name: str, spectrum: Spectrum, shown: int) -> str:
    values = spectrum.values
    middle, last = values[max(0, shown // 2 - 1)], values[max(0, shown - 1)]
    gone = f", then {len(values) - shown:,} that are gone" if shown < len(values) else ""
    return f"{name}: from {values[0]:.3g} by {middle:.3g} in the middle down to {last:.3g}{gone}"


def _nearest(found: Sequence[Measured]) -> list[str]:
    """In order, where there is one."""
    ways: dict[str, Callable[[Measured], float | None]] = {
        "own weights": lambda one: own_distance(one, found),
        "mean of draws": mean_distance,
    }
    words = []
    for what, read in ways.items():
        known = sorted((d, one.name, one) for one in found if (d := read(one)) is not None)
        if len(known) > 1:
            told = [f"{name} ({d:.2f}{_without(_lost(one, found).get(what))})" for d, name, one in known]
            words.append(f"Nearest to dense, {what}: {'; '.join(told)}.")
    return words
