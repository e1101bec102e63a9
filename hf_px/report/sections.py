"""From measurements to a report: a table of facts, then the sections. To add a section, see README.md here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..analysis.latency import Latency
from ..figures import Table
from ..tickets.card import read_repair
from ..tickets.shrunk_ticket import read_shrunk
from .by_layer import layers_section
from .costs import cost_section
from .document import Report
from .mask_sections import overlap_section, scores_section
from .measure import Measured
from .spectra import MEAN, OWN, against_dense, distances, spectrum_section
from .wording import format_or_none, group_networks, listed, with_unit

# each takes groups of networks; None: there is nothing to show
SECTIONS = (spectrum_section, layers_section, cost_section, scores_section, overlap_section)


def build_report(found: Sequence[Measured], settings: Mapping[str, Any]) -> Report:
    groups = group_networks(found)
    sections = [section(groups) for section in SECTIONS]
    return Report(
        f"Report: {listed([one.name for one in found])}",
        (_introduction(found),),
        _facts(found),
        tuple(section for section in sections if section is not None),
        settings,
    )


def _introduction(found: Sequence[Measured]) -> str:
    pruned = [one for one in found if one.network.mask is not None]
    if not pruned:
        return "Dense networks, to compare a ticket of them with."
    collapsed = [one.name for one in pruned if one.summary.collapsed]
    silent = [one.name for one in pruned if one.network.silent_classes]
    text = "What pruning has left of these networks, and what it does to learning, width and cost. "
    if collapsed:
        text += f"Layers that carry nothing any more: in {listed(collapsed)}. "
    if silent:
        text += f"Classes that the head keeps no weight for: in {listed(silent)}. "
    if collapsed or silent:
        return text + "See Width, density, collapse."
    return text + "No layer is empty or cut off, and every class keeps a weight."


def _facts(found: Sequence[Measured]) -> Table:
    rows: list[tuple[str, Callable[[Measured], str | None]]] = [
        ("architecture", lambda m: m.network.architecture),
        ("images", lambda m: "x".join(map(str, m.cost.input_size))),
        ("method", lambda m: m.network.header.get("scorer") if m.network.mask is not None else "dense"),
        ("repaired by, error by layer", _repair),
        ("channels of its architecture", _channels),
        ("weights kept", lambda m: f"{m.summary.kept:,} of {m.summary.total:,}"),
        ("sparsity", lambda m: f"{m.summary.nominal_sparsity:.2%}"),
        ("effective sparsity", lambda m: format_or_none(m.summary.effective_sparsity, ".2%")),
        ("layers that carry nothing", lambda m: f"{len(m.summary.collapsed)} of {len(m.summary.rows)}"),
        ("classes without a weight", lambda m: _silent_count(m, found)),
        ("output units with a weight", lambda m: f"{m.summary.kept_units:,} of {m.summary.units:,}"),
        ("output units on a path", _live_units),
        ("bottlenecks", lambda m: str(len(m.summary.bottlenecks))),
        ("multiply-adds, dense", lambda m: with_unit(m.cost.macs_dense)),
        ("multiply-adds, live", lambda m: with_unit(m.cost.macs_sparse)),
        ("bytes, dense", lambda m: f"{m.bytes['dense']:,}"),
        ("bytes, packed", lambda m: format_or_none(m.bytes.get("packed"), ",")),
        ("one image takes", lambda m: _median(m.latency)),
        ("the same without zeros", lambda m: _median(m.latency_dense)),
        ("distance of spectra, own weights", lambda m: format_or_none(distances(m, found).get(OWN), ".3f")),
        ("distance of spectra, mean of draws", lambda m: format_or_none(distances(m, found).get(MEAN), ".3f")),
        ("trace against dense, mean of draws", lambda m: format_or_none(against_dense(m)[0], ".3f")),
        ("largest against dense, mean of draws", lambda m: format_or_none(against_dense(m)[1], ".3f")),
        ("test result, as it says", _claimed_result),
    ]  # fmt: skip
    table = [(name, *(read(one) for one in found)) for name, read in rows]
    known = [row for row in table if any(cell is not None for cell in row[1:])]
    return Table(("", *(one.name for one in found)), tuple(known))


def _silent_count(one: Measured, found: Sequence[Measured]) -> str | None:
    """The row is shown only if some network has silent classes."""
    if one.network.mask is None or not any(other.network.silent_classes for other in found):
        return None
    return str(len(one.network.silent_classes))


def _live_units(one: Measured) -> str | None:
    live = one.summary.live_units
    return None if live is None else f"{live:,} of {one.summary.units:,}"


def _median(found: Latency | None) -> str | None:
    return None if found is None else f"{1e3 * found.median:,.4g} ms"


def _repair(one: Measured) -> str | None:
    """What the ticket's metadata says of a repair: images, and the mean error of a layer's output."""
    found = read_repair(one.network.header)
    if found is None:
        return None
    return f"{found['images']:,} images, {found['before']:.1%} before, {found['after']:.1%} after"


def _channels(one: Measured) -> str | None:
    """Of a network that shrink has cut: channels that are left, and its part of the full width's multiply-adds."""
    found = read_shrunk(one.network.header)
    if found is None:
        return None
    return f"{found.channels[1]:,} of {found.channels[0]:,}; {found.macs[1] / found.macs[0]:.1%} of the multiply-adds"


def _claimed_result(one: Measured) -> str | None:
    """The first result that the ticket's metadata claims; it is not measured here."""
    for result in one.network.header.get("results", []):
        if isinstance(result, Mapping) and isinstance(result.get("value"), (int, float)):
            dense = result.get("dense")
            beside = f" (dense {dense:.4f})" if isinstance(dense, (int, float)) else ""
            return f"{result.get('metric')} {result['value']:.4f}{beside} on {result.get('dataset')}"
    return None
