"""Layer by layer: the width that is left, the weights, and the layers that carry nothing any more."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis import Width, WidthRow
from ..figures import Table, layers
from .document import Figure, Section
from .measure import Measured
from .wording import are, end, names, of, some, titled


def by_layer(groups: Sequence[Sequence[Measured]]) -> Section:
    figures: list[Figure] = []
    words = [
        "A unit is a row of a linear layer or a kernel of a convolution. As the paper counts, it is there while one "
        "weight of it is; on a path, it is reached from the input and reaches the output. A bottleneck is a layer "
        "whose part of units is less than half of the median layer's.",
        "A kept weight is dead where no path from input to output runs through it: it costs space and does nothing.",
    ]
    for i, group in enumerate(groups):
        pruned = [one for one in group if one.network.mask is not None]
        title, order = titled("Output units on a path, by layer", group, groups), names(group)
        figures.append(_width(f"width-by-layer{end(i, groups)}", title, pruned or group, order))
        if pruned:
            title = titled("Density by layer", group, groups)
            figures.append(_density(f"density-by-layer{end(i, groups)}", title, pruned, order))
        words += [sentence for one in pruned for sentence in _said(one)]
    return Section("layers", "Width, density, collapse", tuple(words), tuple(figures))


def _said(one: Measured) -> list[str]:
    narrow, gone = one.width.bottlenecks, one.summary.collapsed
    dead = (
        "" if one.summary.dead is None else f"{one.summary.dead:,} of the kept weights {are(one.summary.dead)} dead; "
    )
    empty = [row.name for row in one.summary.rows if not row.kept]
    cut_off = [name for name in gone if name not in empty]
    narrow = [name for name in narrow if name not in gone]  # these are worse than narrow
    parts = [f"nothing is left of {some(empty)}"] if empty else []
    parts += [f"no weight on a path is left in {some(cut_off)}"] if cut_off else []
    words = f"{one.name}: {dead}{'; '.join(parts) or 'no layer is lost'}; "
    words += f"bottlenecks in {some(narrow)}." if narrow else f"no {'other ' * bool(parts)}bottleneck."
    return [words, *silent(one), *([f"{one.name}: {one.summary.note}."] if one.summary.note else [])]


def silent(one: Measured) -> list[str]:
    """A sentence on the classes that a head without weights cannot tell."""
    if not (gone := one.network.silent):
        return []
    shown = some([str(label) for label in gone])
    return [
        f"{one.name}: the head keeps no weight for {len(gone)} class{'es' * (len(gone) > 1)} ({shown}): its output "
        "for them is a constant, and at best one of them is told, as what is left over when no other class fits."
    ]


def _width(name: str, title: str, shown: Sequence[Measured], order: Sequence[str]) -> Figure:
    by_name = [row.name for row in shown[0].width.rows]
    shares = {one.name: [row.share for row in one.width.rows] for one in shown}
    told = {one.name: [of(_carry(row), row.units) for row in one.width.rows] for one in shown}
    alt = "; ".join(f"{one.name}: {of(_carry(one.width), one.width.units)}" for one in shown)
    head = ["layer", "units"]
    for one in shown:
        head += [f"{one.name}: with a weight", f"{one.name}: on a path"]
    rows = []
    for k, layer in enumerate(by_name):
        each = [one.width.rows[k] for one in shown]
        rows.append((layer, each[0].units, *(n for row in each for n in (row.kept, row.live))))
    return Figure(
        name,
        title,
        layers(
            by_name, shares, title=title, x="part of the layer's units", whole=1.0, texts=told, order=order, alt=alt
        ),
        Table(tuple(head), tuple(rows), ("", *(",d" for _ in head[1:]))),
    )


def _density(name: str, title: str, pruned: Sequence[Measured], order: Sequence[str]) -> Figure:
    by_name = [row.name for row in pruned[0].summary.rows]
    series = {one.name: [row.density for row in one.summary.rows] for one in pruned}
    told = {one.name: [f"{row.density:.2%}" for row in one.summary.rows] for one in pruned}
    alt = "; ".join(f"{one.name}: {one.summary.kept:,} of {one.summary.total:,} weights" for one in pruned)
    head = ["layer", "shape", "weights"]
    for one in pruned:
        head += [f"{one.name}: kept", f"{one.name}: of those dead"]
    rows = []
    for k, layer in enumerate(by_name):
        each = [one.summary.rows[k] for one in pruned]
        cells = [n for row in each for n in (row.kept, row.dead)]
        rows.append((layer, "x".join(map(str, each[0].shape)), each[0].total, *cells))
    return Figure(
        name,
        title,
        layers(by_name, series, title=title, x="part of the layer's weights", texts=told, order=order, alt=alt),
        Table(tuple(head), tuple(rows), ("", "", *(",d" for _ in head[2:]))),
    )


def _carry(row: Width | WidthRow) -> int:
    """Units on a path; those with a weight, where paths are unknown."""
    return row.kept if row.live is None else row.live
