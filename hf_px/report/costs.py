"""Cost: multiply-adds, bytes and milliseconds, and an honest word on what zeros save here."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis import NO_FASTER, Latency, faster, verdict
from ..figures import Table, layers
from ..figures.table import Cell
from .document import Figure, Section
from .measure import Measured
from .wording import end, names, scaled, some, titled

_HEAD = (
    "network", "ms", "ms without zeros", "multiply-adds, live", "multiply-adds, dense", "bytes, packed",
    "bytes, dense", "weights kept", "parameters", "ms, lower quartile", "ms, upper quartile",
    "without zeros, lower quartile", "without zeros, upper quartile",
)  # fmt: skip


def costs(groups: Sequence[Sequence[Measured]]) -> Section:
    x = "multiply-adds of one image"
    figures, words = [], []
    rows: list[tuple[Cell, ...]] = []
    for i, group in enumerate(groups):
        shown = [one for one in group if one.network.mask is not None] or list(group)
        title = titled("Multiply-adds by layer, live weights", group, groups)
        by_name = [row.name for row in shown[0].cost.rows]
        macs = {one.name: [float(row.macs_sparse) for row in one.cost.rows] for one in shown}
        told = {one.name: [scaled(row.macs_sparse) for row in one.cost.rows] for one in shown}
        alt = "; ".join(f"{one.name}: {scaled(one.cost.macs_sparse)} of {scaled(one.cost.macs_dense)}" for one in shown)
        cells: list[tuple[Cell, ...]] = []
        for k, name in enumerate(by_name):
            each = [one.cost.rows[k] for one in shown]
            cells.append((name, each[0].macs_dense, *(row.macs_sparse for row in each)))
        figures.append(
            Figure(
                f"cost-by-layer{end(i, groups)}",
                title,
                layers(by_name, macs, title=title, x=x, texts=told, order=names(group), alt=alt),
                Table(("layer", "dense", *macs), tuple(cells), ("", ",d", *(",d" for _ in macs))),
            )
        )
        for one in group:
            rows.append(_row(one))
            words += [f"{one.name}: {one.cost.note}."] if one.cost.note else []
    first = [
        "Multiply-adds are counted by torch on one image, times the part of each layer's weights that lies on a path: "
        "what a kernel that skips every zero would do. Bytes: of the dense tensors alone, and of the packed ticket."
    ]
    timed = [one for group in groups for one in group if one.latency is not None]
    if timed:
        first.append(
            f"Times are of one image on {timed[0].machine}: the median of many runs, and quartiles; networks of a "
            "kind run in turns. Without zeros: the same network with numbers in their place."
        )
    words += _verdicts([one for one in timed if one.latency_dense is not None])
    table = Table(_HEAD, tuple(rows), ("", *(",.4g",) * 2, *(",d",) * 6, *(",.4g",) * 4))
    return Section("cost", "Cost", (*first, *words), tuple(figures), table)


def _verdicts(found: Sequence[Measured]) -> list[str]:
    """A sentence each; one for all of those that are alike."""
    pairs = {one.name: (one.latency_dense, one.latency) for one in found}
    alike = [name for name, (dense, sparse) in pairs.items() if dense and sparse and faster(dense, sparse) is None]
    if len(alike) < 2:
        alike = []
    words = [f"{some(alike)}: {NO_FASTER}"] if alike else []
    others = {name: pair for name, pair in pairs.items() if name not in alike}
    return words + [f"{name}: {verdict(d, s)}" for name, (d, s) in others.items() if d and s]


def _row(one: Measured) -> tuple[Cell, ...]:
    (ms, *quartiles), (full, *full_quartiles) = _ms(one.latency), _ms(one.latency_dense)
    return (
        one.name, ms, full, one.cost.macs_sparse, one.cost.macs_dense, one.bytes.get("packed"), one.bytes["dense"],
        one.cost.kept, one.cost.parameters, *quartiles, *full_quartiles,
    )  # fmt: skip


def _ms(found: Latency | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if found is None else (1e3 * found.median, 1e3 * found.low, 1e3 * found.high)
