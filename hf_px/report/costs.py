"""The section on cost: multiply-adds, bytes and milliseconds, and whether zeros save time on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.latency import NO_FASTER, Latency, is_faster, latency_verdict
from ..figures import Table
from ..figures.table import Value
from .document import Figure, Section
from .measure import Measured
from .wording import Group, layer_figure, listed, with_unit

_HEAD = (
    "network", "ms", "ms without zeros", "multiply-adds, live", "multiply-adds, dense", "bytes, packed",
    "bytes, dense", "weights kept", "parameters", "ms, lower quartile", "ms, upper quartile",
    "without zeros, lower quartile", "without zeros, upper quartile",
)  # fmt: skip
_FORMATS = ("", *(",.4g",) * 2, *(",d",) * 6, *(",.4g",) * 4)


def cost_section(groups: Sequence[Group]) -> Section:
    everyone = [one for group in groups for one in group.members]
    timed = [one for one in everyone if one.latency is not None]
    paragraphs = [
        "Multiply-adds are counted by torch on one image, times the share of each layer's weights that lies on a path: "
        "the work of a kernel that skips every zero. Bytes are those of the dense tensors and of the packed ticket."
    ]
    if timed:
        paragraphs.append(
            f"Times are of one image on {timed[0].machine}: median of many runs, with quartiles; networks of one kind "
            "run in turns. Without zeros: the same network with random numbers in their place."
        )
        if any(one.sparse_runtime for one in timed):
            paragraphs.append("Pruned networks run in the sparse runtime of hf_px, as hf_px.fast does.")
    paragraphs += [f"{one.name}: {one.cost.note}." for one in everyone if one.cost.note]
    paragraphs += _verdicts(timed)
    table = Table(_HEAD, tuple(map(_row, everyone)), _FORMATS)
    return Section("cost", "Cost", tuple(paragraphs), tuple(map(_macs_figure, groups)), table)


def _macs_figure(group: Group) -> Figure:
    shown = group.pruned or group.members
    first = shown[0].cost.rows
    macs = {one.name: [row.macs_sparse for row in one.cost.rows] for one in shown}
    return layer_figure(
        group,
        "cost-by-layer",
        f"Multiply-adds by layer, live weights{group.title_suffix}",
        [row.name for row in first],
        macs,
        {"dense": [row.macs_dense for row in first], **macs},
        x="multiply-adds of one image",
        texts={name: [with_unit(value) for value in values] for name, values in macs.items()},
        alt="; ".join(
            f"{one.name}: {with_unit(one.cost.macs_sparse)} of {with_unit(one.cost.macs_dense)}" for one in shown
        ),
    )


def _verdicts(timed: Sequence[Measured]) -> list[str]:
    """One sentence per pruned network, or one for all networks without a difference."""
    known = {one.name: (one.latency_dense, one.latency) for one in timed if one.latency_dense and one.latency}
    sparse = {one.name for one in timed if one.sparse_runtime}
    alike = [name for name, pair in known.items() if name not in sparse and is_faster(*pair) is None]
    if len(alike) < 2:
        alike = []
    verdicts = [
        f"{name}: {latency_verdict(*pair, name in sparse)}" for name, pair in known.items() if name not in alike
    ]
    return [f"{listed(alike)}: {NO_FASTER}", *verdicts] if alike else verdicts


def _row(one: Measured) -> tuple[Value, ...]:
    (ms, *quartiles), (ms_dense, *quartiles_dense) = _milliseconds(one.latency), _milliseconds(one.latency_dense)
    return (
        one.name, ms, ms_dense, one.cost.macs_sparse, one.cost.macs_dense, one.bytes.get("packed"), one.bytes["dense"],
        one.cost.kept, one.cost.parameters, *quartiles, *quartiles_dense,
    )  # fmt: skip


def _milliseconds(found: Latency | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if found is None else (1e3 * found.median, 1e3 * found.low, 1e3 * found.high)
