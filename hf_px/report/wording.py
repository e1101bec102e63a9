"""How numbers and names are said in a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_SOME = 6  # names in a sentence


def end(i: int, groups: Sequence[Any]) -> str:
    return f"-{i + 1}" if len(groups) > 1 else ""


def titled(title: str, group: Sequence[Any], groups: Sequence[Any]) -> str:
    """With the architecture, where the page has several; with the networks, where two groups have the same one."""
    if len(groups) < 2:
        return title
    kinds = [each[0].network.architecture for each in groups]
    mine = group[0].network.architecture
    return f"{title}: {mine if kinds.count(mine) == 1 else f'{mine}, {some(names(group))}'}"


def names(group: Sequence[Any]) -> list[str]:
    """In the order of the page, by which they have their colours."""
    return [one.name for one in group]


def are(count: int) -> str:
    return "is" if count == 1 else "are"


def some(names: Sequence[str]) -> str:
    more = len(names) - _SOME
    between = "; " if any("," in name for name in names) else ", "  # "snip, seed 0" is one name
    return between.join(names[:_SOME]) + (f" and {more} more" if more > 0 else "")


def of(part: int, whole: int) -> str:
    return f"{part:,}/{whole:,}"


def percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.2%}"


def number(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def scaled(count: float) -> str:
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return f"{count:.3g}"
