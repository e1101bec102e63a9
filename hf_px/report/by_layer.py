"""The section on layers: remaining width and weights, and layers that carry no signal any more."""

from __future__ import annotations

from collections.abc import Sequence

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
    first = shown[0].summary.rows
    columns: dict[str, list[Value]] = {"units": [row.units for row in first]}
    for one in shown:
        columns[f"{one.name}: with a weight"] = [row.kept_units for row in one.summary.rows]
        columns[f"{one.name}: on a path"] = [row.live_units for row in one.summary.rows]
    carrying = {one.name: sum(row.carrying_units for row in one.summary.rows) for one in shown}
    return layer_figure(
        group,
        "width-by-layer",
        f"Output units on a path, by layer{group.title_suffix}",
        [row.name for row in first],
        {one.name: [row.unit_share for row in one.summary.rows] for one in shown},
        columns,
        x="part of the layer's units",
        total=1.0,
        texts={one.name: [f"{row.carrying_units:,}/{row.units:,}" for row in one.summary.rows] for one in shown},
        alt="; ".join(f"{one.name}: {carrying[one.name]:,}/{one.summary.units:,}" for one in shown),
    )


def _density_figure(group: Group) -> Figure:
    pruned = group.pruned
    first = pruned[0].summary.rows
    columns: dict[str, list[Value]] = {
        "shape": ["x".join(map(str, row.shape)) for row in first],
        "weights": [row.total for row in first],
    }
    for one in pruned:
        columns[f"{one.name}: kept"] = [row.kept for row in one.summary.rows]
        columns[f"{one.name}: of those dead"] = [row.dead for row in one.summary.rows]
    return layer_figure(
        group,
        "density-by-layer",
        f"Density by layer{group.title_suffix}",
        [row.name for row in first],
        {one.name: [row.density for row in one.summary.rows] for one in pruned},
        columns,
        x="part of the layer's weights",
        texts={one.name: [f"{row.density:.2%}" for row in one.summary.rows] for one in pruned},
        alt="; ".join(f"{one.name}: {one.summary.kept:,} of {one.summary.total:,} weights" for one in pruned),
    )
