"""The section on spectra: eigenvalues of the NTK by rank, and the distance of pruned networks from dense ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from ..analysis.ntk import RESOLVED, LostRanks, Spectrum, distance, lost_ranks
from ..figures import Panel, Table, draw_panels
from ..figures.table import Value
from .document import Figure, Section
from .measure import Measured
from .wording import Group, listed, plural

OWN, MEAN = "own weights", "mean of draws"  # the kinds of spectra
_HEAD = (
    "network", "distance, own weights", "distance, mean of draws", "largest eigenvalue, own weights",
    "trace, own weights", "trace, ± error", "trace against dense, mean of draws",
    "largest against dense, mean of draws",
)  # fmt: skip
_FORMATS = ("", ".3f", ".3f", ".4g", ".4g", ".2g", ".3g", ".3g")


def spectrum_section(groups: Sequence[Group]) -> Section | None:
    """None if spectra were skipped."""
    everyone = [one for group in groups for one in group.members]
    reasons = [f"No spectrum of {one.spectra.reason}." for one in everyone if one.spectra.reason]
    figures: list[Figure] = []
    rows: list[tuple[Value, ...]] = []
    findings: list[str] = []
    how: list[str] = []
    for group in groups:
        measured = [one for one in group.members if one.spectra.own is not None]
        if measured:
            figures += _figures(group, measured)
            rows += [_row(one, measured) for one in measured]
            how.append(_conditions(measured[0]))
            findings += _findings(measured)
    if not rows:
        return Section("spectrum", "Spectrum", tuple(reasons)) if reasons else None
    paragraphs = [
        "The eigenvalues of the Neural Tangent Kernel say how fast a network learns in each direction; here "
        f"{'; '.join(dict.fromkeys(how))}. Own weights are those that training starts from."
    ]
    if any(one.spectra.mean is not None for one in everyone):
        paragraphs.append(
            "Mean of draws: over re-drawn Kaiming-normal weights, the same for every network, so only the mask "
            "matters; the dense network to compare with need not exist any more."
        )
    paragraphs.append(
        "Distance: by how many decades the eigenvalues differ from the dense network's, rank by rank, on average; 0 is "
        "the same spectrum, 1 is a factor of ten. By itself it says nothing about accuracy."
    )
    shown = [i for i in range(len(_HEAD)) if any(row[i] is not None for row in rows)]
    table = Table(
        tuple(_HEAD[i] for i in shown),
        tuple(tuple(row[i] for i in shown) for row in rows),
        tuple(_FORMATS[i] for i in shown),
    )
    return Section("spectrum", "Spectrum", (*paragraphs, *findings, *reasons), tuple(figures), table)


def dense_and_pruned(one: Measured, found: Sequence[Measured]) -> dict[str, tuple[Spectrum, Spectrum]]:
    """{kind: spectra of the dense network and of this one}, for the kinds that are known for both."""
    if one.network.mask is None:
        return {}
    dense = _dense_of(one, found)
    pairs = {
        OWN: (dense.spectra.own if dense else None, one.spectra.own),
        MEAN: (one.spectra.mean_dense, one.spectra.mean),
    }
    return {kind: (a, b) for kind, (a, b) in pairs.items() if a is not None and b is not None}


def distances(one: Measured, found: Sequence[Measured]) -> dict[str, float]:
    """{kind: distance of the spectra}."""
    return {kind: distance(*pair) for kind, pair in dense_and_pruned(one, found).items()}


def against_dense(one: Measured) -> tuple[float | None, float | None]:
    """Trace and largest eigenvalue divided by the dense network's, both means of draws."""
    if (pair := dense_and_pruned(one, ()).get(MEAN)) is None:
        return None, None
    dense, mean = pair
    return mean.trace / dense.trace, mean.values[0] / dense.values[0]


def _dense_of(one: Measured, found: Sequence[Measured]) -> Measured | None:
    """The dense network with the same weights; for a ticket, a comparable dense network."""
    own, network = one.spectra.own, one.network
    if own is None or network.mask is None:
        return None
    for other in found:
        comparable = other.name if other.network.comparable_key == network.comparable_key else None
        same_name = other.name == (network.dense_name or comparable)
        if other.network.mask is None and same_name and other.spectra.own is not None:
            return other if other.spectra.own.size == own.size else None
    return None


def _findings(found: Sequence[Measured]) -> list[str]:
    paragraphs = _ranking(found)
    paragraphs += [sentence for one in found for sentence in _lost_sentences(one, found)]
    paragraphs += [sentence for one in found for sentence in _compared_with(one, found)]
    alone = [one.name for one in found if one.network.mask is not None and OWN not in distances(one, found)]
    if alone:
        whose = plural(len(alone), "its dense network is", "their dense networks are")
        paragraphs.append(f"{listed(alone)}: {whose} not on this page; name that model too to compare with it.")
    return paragraphs


def _compared_with(one: Measured, found: Sequence[Measured]) -> list[str]:
    """For a ticket beside a dense network: whether both have the same weights, or the ticket was trained."""
    dense = _dense_of(one, found)
    if dense is None or one.network.dense_name is not None:
        return []
    mask = one.network.bits
    own, others = mask.tensors_of(one.network.model), mask.tensors_of(dense.network.model)
    same = all(bool((own[name][bits] == others[name][bits]).all()) for name, bits in mask.bits.items())
    what = "whose weights it has" if same else "which has other weights, so the distance is not due to the mask alone"
    return [f"{one.name}: own weights are compared with {dense.name}, {what}."]


def _lost(one: Measured, found: Sequence[Measured]) -> dict[str, LostRanks]:
    """{kind: eigenvalues that pruning lost}, if there are any."""
    lost = {kind: lost_ranks(*pair) for kind, pair in dense_and_pruned(one, found).items()}
    return {kind: each for kind, each in lost.items() if each.ranks}


def _lost_sentences(one: Measured, found: Sequence[Measured]) -> list[str]:
    """How much of the distance is due to lost eigenvalues, which would hide what the others do."""
    assert one.spectra.own is not None
    return [
        f"{one.name}, {kind}: {lost.ranks:,} of {len(one.spectra.own.values):,} eigenvalues are lost, below 10⁻¹⁰ of "
        f"the dense network's largest; they make up {lost.share:.0%} of the distance, which is {lost.rest:.2f} over "
        "the others."
        for kind, lost in _lost(one, found).items()
    ]


def _ranking(found: Sequence[Measured]) -> list[str]:
    """The networks in order of their distance, if there are two or more."""
    paragraphs = []
    for kind in (OWN, MEAN):
        known = sorted((d, one.name, one) for one in found if (d := distances(one, found).get(kind)) is not None)
        if len(known) > 1:
            lost = {one.name: _lost(one, found).get(kind) for _, _, one in known}
            rest = {name: f", {each.rest:.2f} without lost ranks" if each else "" for name, each in lost.items()}
            entries = [f"{name} ({d:.2f}{rest[name]})" for d, name, _ in known]
            paragraphs.append(f"Nearest to dense, {kind}: {'; '.join(entries)}.")
    return paragraphs


def _row(one: Measured, group: Sequence[Measured]) -> tuple[Value, ...]:
    own = one.spectra.own
    assert own is not None
    error = None if own.exact else own.trace_error
    apart = distances(one, group)
    return one.name, apart.get(OWN), apart.get(MEAN), own.values[0], own.trace, error, *against_dense(one)


def _conditions(one: Measured) -> str:
    own, images = one.spectra.own, one.spectra.images
    assert own is not None
    text = f"on {images} {plural(images, 'image', 'images')} of {one.network.data}, {own.size // images:,} outputs each"
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in one.network.model.modules()):
        text += ", with constant BatchNorm statistics"
    if not own.exact:
        text += (
            f"; the first {len(own.values)} of {own.size:,} eigenvalues, by Lanczos, and distances are over these; "
            "the trace is an estimate with its standard error"
        )
    return text


def _figures(group: Group, measured: Sequence[Measured]) -> list[Figure]:
    own = {one.name: one.spectra.own for one in measured if one.spectra.own is not None}
    mean = {one.name: one.spectra.mean for one in measured if one.spectra.mean is not None}
    dense = next((one.spectra.mean_dense for one in measured if one.spectra.mean_dense is not None), None)
    if dense is not None and all(one.network.mask is not None for one in measured):
        mean = {"dense": dense, **mean}
    found = [_figure(group, "spectrum-own", "NTK at the networks' own weights", own)]
    if mean:
        draws = next(iter(mean.values())).draws
        title = f"NTK, mean over {draws} {plural(draws, 'draw', 'draws')} of the weights"
        found.append(_figure(group, "spectrum-mean", title, mean))
    return found


def _figure(group: Group, name: str, title: str, spectra: Mapping[str, Spectrum]) -> Figure:
    title += group.title_suffix
    # smaller eigenvalues are rounding errors, and would squeeze the others into the top of the figure
    floor = RESOLVED * max(s.values[0] for s in spectra.values())
    series = {one: [(i, v) for i, v in enumerate(s.values, 1) if v > floor] for one, s in spectra.items()}
    count = max(len(s.values) for s in spectra.values())
    size = max(s.size for s in spectra.values())
    part = "" if count == size else f", the first {count} of {size:,}"
    rows = [(i + 1, *(s.values[i] if i < len(s.values) else None for s in spectra.values())) for i in range(count)]
    alt = "; ".join(_alt(one, s.values, len(series[one])) for one, s in spectra.items())
    panel = Panel(series, f"rank{part}")
    svg = draw_panels([panel], title=title, y="eigenvalue", log_y=True, order=group.names, alt=alt)
    table = Table(("rank", *spectra), tuple(rows), (",d", *(".4g" for _ in spectra)))
    return Figure(f"{name}{group.file_suffix}", title, svg, table)


def _alt(name: str, values: Sequence[float], shown: int) -> str:
    middle, last = values[max(0, shown // 2 - 1)], values[max(0, shown - 1)]
    lost = f", then {len(values) - shown:,} that are lost" if shown < len(values) else ""
    return f"{name}: from {values[0]:.3g} by {middle:.3g} in the middle down to {last:.3g}{lost}"
