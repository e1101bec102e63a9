"""Groups of networks that are compared, and how a report writes numbers, lists of names and figures by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..figures import Table, draw_layers
from ..figures.table import Value
from .document import Figure
from .measure import Measured

_MOST_NAMES = 6  # in a sentence


@dataclass(frozen=True)
class Group:
    """Networks with the same layers and image size."""

    members: Sequence[Measured]
    file_suffix: str  # -1, -2, … if there are several groups
    title_suffix: str  # the architecture, if there are several groups

    @property
    def pruned(self) -> list[Measured]:
        return [one for one in self.members if one.network.mask is not None]

    @property
    def names(self) -> list[str]:
        """In page order, which fixes the colour of each network."""
        return [one.name for one in self.members]


def group_networks(found: Sequence[Measured]) -> list[Group]:
    by_key: dict[str, list[Measured]] = {}
    for one in found:
        by_key.setdefault(one.network.comparable_key, []).append(one)
    if len(by_key) < 2:
        return [Group(found, "", "")]
    architectures = [members[0].network.architecture for members in by_key.values()]
    groups = []
    for i, (own, members) in enumerate(zip(architectures, by_key.values()), 1):
        # two groups of one architecture differ by the names of their networks
        names = "" if architectures.count(own) == 1 else f", {listed([one.name for one in members])}"
        groups.append(Group(members, f"-{i}", f": {own}{names}"))
    return groups


def listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    separator = "; " if any("," in name for name in names) else ", "  # "snip, seed 0" is one name
    return separator.join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def plural(count: int, one: str, several: str) -> str:
    return one if count == 1 else several


def format_or_none(value: float | None, spec: str) -> str | None:
    return None if value is None else format(value, spec)


def with_unit(count: float) -> str:
    """41000000 as 41 M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g}"


def layer_figure(
    group: Group,
    name: str,
    title: str,
    layers: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    columns: Mapping[str, Sequence[Value]],
    *,
    spec: str = ",d",
    **chart: Any,
) -> Figure:
    """A chart of `series` by layer, and `columns` as the table of its numbers; `chart` is passed to draw_layers."""
    svg = draw_layers(layers, series, title=title, order=group.names, **chart)
    table = Table(("layer", *columns), tuple(zip(layers, *columns.values())), ("", *(spec for _ in columns)))
    return Figure(f"{name}{group.file_suffix}", title, svg, table)
