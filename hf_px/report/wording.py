"""How a report writes numbers, lists of names, and figures by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..figures import Table, draw_layers
from ..figures.table import Value
from .document import Figure

_MOST_NAMES = 6  # in a sentence


def file_suffix(i: int, groups: Sequence[Any]) -> str:
    """-1, -2, … if there are several groups of networks."""
    return f"-{i + 1}" if len(groups) > 1 else ""


def group_title(title: str, group: Sequence[Any], groups: Sequence[Any]) -> str:
    """With several groups, adds the architecture; with two groups of one architecture, the names of the networks."""
    if len(groups) < 2:
        return title
    architectures = [each[0].network.architecture for each in groups]
    own = group[0].network.architecture
    return f"{title}: {own if architectures.count(own) == 1 else f'{own}, {listed(network_names(group))}'}"


def network_names(group: Sequence[Any]) -> list[str]:
    """In page order, which fixes the colour of each network."""
    return [one.name for one in group]


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
    table = Table(("layer", *columns), tuple(zip(layers, *columns.values())), ("", *(spec for _ in columns)))
    return Figure(name, title, draw_layers(layers, series, title=title, **chart), table)
