"""From numbers to a report: facts side by side, then the sections; networks of a kind together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..analysis import Latency
from ..figures import Table
from .by_layer import by_layer
from .costs import costs
from .document import Report
from .mask_sections import overlaps, scores
from .measure import Measured
from .spectra import against_dense, mean_distance, own_distance, spectra
from .wording import number, percent, scaled, some


def report(found: Sequence[Measured], settings: Mapping[str, Any]) -> Report:
    """All of it. A section without numbers says what to ask for, or is not there."""
    kinds: dict[str, list[Measured]] = {}
    for one in found:
        kinds.setdefault(one.network.kin, []).append(one)
    groups = list(kinds.values())
    sections = [
        spectra(groups),
        by_layer(groups),
        costs(groups),
        scores(groups),
        overlaps(groups),
    ]
    names = some([one.name for one in found])
    return Report(
        f"Report: {names}",
        (_lede(found),),
        _facts(found),
        tuple(section for section in sections if section is not None),
        settings,
    )


def _lede(found: Sequence[Measured]) -> str:
    pruned = [one for one in found if one.network.mask is not None]
    if not pruned:
        return "Networks as they are, nothing pruned: what a ticket of them would be compared with."
    lost = [one.name for one in pruned if one.summary.collapsed]
    mute = [one.name for one in pruned if one.network.silent]
    words = "What pruning has left, and what that does to learning, width and cost. "
    if lost:
        words += f"Layers that carry nothing any more: in {some(lost)}. "
    if mute:
        words += f"Classes that the head keeps no weight for: in {some(mute)}. "
    if lost or mute:
        return words + "See Width, density, collapse."
    return words + "No layer is emptied or cut off, and no class has lost its weights."


def _facts(found: Sequence[Measured]) -> Table:
    rows: list[tuple[str, Callable[[Measured], str | None]]] = [
        ("architecture", lambda m: m.network.architecture),
        ("images", lambda m: "x".join(map(str, m.cost.input_size))),
        ("method", lambda m: m.network.told.get("scorer") if m.network.mask is not None else "dense"),
        ("weights kept", lambda m: f"{m.summary.kept:,} of {m.summary.total:,}"),
        ("sparsity", lambda m: f"{m.summary.nominal_sparsity:.2%}"),
        ("effective sparsity", lambda m: percent(m.summary.effective_sparsity)),
        ("layers that carry nothing", lambda m: f"{len(m.summary.collapsed)} of {len(m.summary.rows)}"),
        ("classes without a weight", lambda m: _silent(m, found)),
        ("output units with a weight", lambda m: _units(m.width.kept, m.width.units)),
        ("output units on a path", lambda m: _units(m.width.live, m.width.units)),
        ("bottlenecks", lambda m: str(len(m.width.bottlenecks))),
        ("multiply-adds, dense", lambda m: scaled(m.cost.macs_dense)),
        ("multiply-adds, live", lambda m: scaled(m.cost.macs_sparse)),
        ("bytes, dense", lambda m: f"{m.bytes['dense']:,}"),
        ("bytes, packed", lambda m: f"{m.bytes['packed']:,}" if "packed" in m.bytes else None),
        ("one image takes", lambda m: _ms(m.latency)),
        ("the same without zeros", lambda m: _ms(m.latency_dense)),
        ("distance of spectra, own weights", lambda m: number(own_distance(m, found))),
        ("distance of spectra, mean of draws", lambda m: number(mean_distance(m))),
        ("trace against dense, mean of draws", lambda m: number(against_dense(m)[0])),
        ("largest against dense, mean of draws", lambda m: number(against_dense(m)[1])),
        ("test result, as it says", _told_result),
    ]  # fmt: skip
    table = [(name, *(read(one) for one in found)) for name, read in rows]
    kept = [row for row in table if any(cell is not None for cell in row[1:])]
    return Table(("", *(one.name for one in found)), tuple(kept))


def _silent(one: Measured, found: Sequence[Measured]) -> str | None:
    """A row of its own where some network has any."""
    if one.network.mask is None or not any(other.network.silent for other in found):
        return None
    return str(len(one.network.silent))


def _units(part: int | None, whole: int) -> str | None:
    return None if part is None else f"{part:,} of {whole:,}"


def _ms(found: Latency | None) -> str | None:
    return None if found is None else f"{1e3 * found.median:,.4g} ms"


def _told_result(one: Measured) -> str | None:
    """A ticket's first result; its own words, not measured here."""
    for result in one.network.told.get("results", []):
        if isinstance(result, Mapping) and isinstance(result.get("value"), (int, float)):
            dense = result.get("dense")
            beside = f" (dense {dense:.4f})" if isinstance(dense, (int, float)) else ""
            return f"{result.get('metric')} {result['value']:.4f}{beside} on {result.get('dataset')}"
    return None
