"""The section on layers: remaining width and weights, and layers that carry no signal any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..analysis.layer_counts import LayerCounts
from ..analysis.summary import Summary
from ..figures.table import Value
from .document import Figure, Section
from .measure import Measured
from .wording import Group, layer_figure, listed, plural


def layers_section(groups: Sequence[Group]) -> Section:
    figures: list[Figure] = []
    paragraphs = [
        "A unit is a row of a linear layer or an output channel of a convolution. As in the paper, it counts while it "
        "keeps a weight; it is on a path if it is reached from the input and reaches the output. A bottleneck is a "
        "layer whose share of units is less than half of the median layer's.",
        "A kept weight is dead if no path from input to output runs through it: it takes space and has no effect.",
    ]
    for group in groups:
        figures.append(_width_figure(group))
        if group.pruned:
            figures.append(_density_figure(group))
        paragraphs += [sentence for one in group.pruned for sentence in _findings(one)]
    return Section("layers", "Width, density, collapse", tuple(paragraphs), tuple(figures))


def _findings(one: Measured) -> list[str]:
    summary = one.summary
    empty = [row.name for row in summary.rows if not row.kept]
    cut_off = [name for name in summary.collapsed if name not in empty]
    narrow = [name for name in summary.bottlenecks if name not in summary.collapsed]
    parts = []
    if summary.dead is not None:
        parts.append(f"{summary.dead:,} of the kept weights {plural(summary.dead, 'is', 'are')} dead")
    lost = [f"nothing is left of {listed(empty)}"] if empty else []
    lost += [f"no weight on a path is left in {listed(cut_off)}"] if cut_off else []
    parts += lost or ["no layer is lost"]
    parts.append(f"bottlenecks in {listed(narrow)}" if narrow else f"no {'other ' if lost else ''}bottleneck")
    note = [f"{one.name}: {summary.note}."] if summary.note else []
    return [f"{one.name}: {'; '.join(parts)}.", *_silent_classes(one), *note]


def _silent_classes(one: Measured) -> list[str]:
    """A sentence on classes for which the head has no weight."""
    if not (silent := one.network.silent_classes):
        return []
    shown = listed([str(label) for label in silent])
    return [
        f"{one.name}: the head keeps no weight for {len(silent)} {plural(len(silent), 'class', 'classes')} ({shown}): "
        "its logit for them is constant, so at most one of them can be predicted, if no other class fits."
    ]


def _width_figure(group: Group) -> Figure:
    shown = group.pruned or group.members
    columns: dict[str, list[Value]] = {"units": [row.units for row in shown[0].summary.rows]}
    for one in shown:
        columns[f"{one.name}: with a weight"] = [row.kept_units for row in one.summary.rows]
        columns[f"{one.name}: on a path"] = [row.live_units for row in one.summary.rows]
    return _figure(
        group, shown, "width-by-layer", "Output units on a path, by layer", columns, "unit_share",
        lambda row: f"{row.carrying_units:,}/{row.units:,}",
        lambda summary: f"{sum(row.carrying_units for row in summary.rows):,}/{summary.units:,}",
        x="part of the layer's units", total=1.0,
    )  # fmt: skip


def _density_figure(group: Group) -> Figure:
    first = group.pruned[0].summary.rows
    columns: dict[str, list[Value]] = {"shape": ["x".join(map(str, row.shape)) for row in first]}
    columns["weights"] = [row.total for row in first]
    for one in group.pruned:
        columns[f"{one.name}: kept"] = [row.kept for row in one.summary.rows]
        columns[f"{one.name}: of those dead"] = [row.dead for row in one.summary.rows]
    return _figure(
        group, group.pruned, "density-by-layer", "Density by layer", columns, "density",
        lambda row: f"{row.density:.2%}",
        lambda summary: f"{summary.kept:,} of {summary.total:,} weights",
        x="part of the layer's weights",
    )  # fmt: skip


def _figure(
    group: Group, networks: Sequence[Measured], name: str, title: str, columns: Mapping[str, Sequence[Value]],
    field: str, text: Callable[[LayerCounts], str], alt: Callable[[Summary], str], **chart: Any,
) -> Figure:  # fmt: skip
    """A chart of one field of the layers; `text` says it of a layer in words, `alt` of a network."""
    return layer_figure(
        group, name, f"{title}{group.title_suffix}", [row.name for row in networks[0].summary.rows],
        {one.name: [getattr(row, field) for row in one.summary.rows] for one in networks}, columns,
        texts={one.name: [text(row) for row in one.summary.rows] for one in networks},
        alt="; ".join(f"{one.name}: {alt(one.summary)}" for one in networks), **chart,
    )  # fmt: skip
