"""Boxes: five quantiles a layer and series, and thresholds as lines across all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from .axis import Axis, around
from .frame import EDGE, LINE, WIDTH, Key, heading, items, keys, legend, mark_keys, mark_line, marker, picture
from .rows import rows
from .text import back, clean, escape, number, text

Five = tuple[float, float, float, float, float]


def boxes(
    names: Sequence[str],
    series: Mapping[str, Sequence[Five | None]],
    *,
    title: str,
    x: str,
    log_x: bool = True,
    marks: Mapping[str, float] | None = None,
    order: Sequence[str] = (),
    alt: str = "",
) -> str:
    """(least, quarter, middle, three quarters, most): a line from end to end, a box, a shape at the middle.

    On a logarithmic axis a quantile of zero lies beyond its left end: the line goes there, and has an arrow.
    """
    for name, values in series.items():
        if len(values) != len(names):
            raise ValueError(f"{name}: {len(values)} boxes for {len(names)} layers; give each layer one, or None")
        for layer, five in zip(names, values):
            if five is not None and not all(a <= b for a, b in pairwise(five)):
                raise ValueError(f"{name}, {layer}: {five} are no quantiles; give least, quarters and most in order")
    marks = dict(marks or {})
    found = [value for values in series.values() for five in values if five for value in five]
    axis = around([*found, *marks.values()], log=log_x)
    marks = {name: value for name, value in marks.items() if axis.holds(value)}
    of_series = keys(series, order)
    of_marks = mark_keys(of_series, marks)

    body, top = heading(title)
    drawn, top = legend(items({name: _sample(k) for name, k in of_series.items()}, 24.0, marks, of_marks), top)
    body += drawn
    words = back(clean(x), WIDTH - 2 * EDGE)
    body.append(text(words, WIDTH - EDGE, top + 12, style="dim", anchor="end", title=clean(x)))
    top += 16

    place = rows(names, top + LINE + 8, 11.0 * max(1, len(series)), gap=4.0 if len(series) < 2 else 10.0)
    axis = axis.at(place.left + 6, place.right - 4)
    drawn, height = place.ruled(axis, above=9)
    body += drawn
    for name, value in marks.items():
        body += mark_line(axis(value), place.top - 4, place.bottom, of_marks[name], f"{clean(name)} at {value:.4g}")
    for i, layer in enumerate(names):
        for j, (of, (name, values)) in enumerate(zip(of_series.values(), series.items())):
            middle = place.middle(i) + 11.0 * (j - (len(series) - 1) / 2)
            if (five := values[i]) is not None:
                said = ", ".join(f"{value:.4g}" for value in five)
                body += _box(five, axis, place.left, middle, of, f"{clean(name, 60)}, {clean(layer)}: {said}")
    alt = alt or f"Distribution of {x} by layer, from input to output, of {', '.join(series)}."
    return picture(body, height, title=title, alt=alt)


def _box(five: Five, axis: Axis, left: float, middle: float, of: Key, hint: str) -> list[str]:
    if not all(axis.holds(value) or value <= 0 for value in five) or not axis.holds(five[4]):
        return []  # nothing above zero, or not a number
    least, quarter, half, three, most = (axis(value) if axis.holds(value) else left for value in five)
    y = number(middle)
    drawn = [f'<path class="line s{of.colour}" d="M{number(least)} {y}H{number(most)}"/>']
    if not axis.holds(five[0]):
        drawn.append(f'<path class="line s{of.colour}" d="M{number(left + 4)} {number(middle - 3)}l-4 3l4 3"/>')
    drawn.append(
        f'<rect class="box f{of.colour} s{of.colour}" x="{number(quarter)}" y="{number(middle - 3.5)}" '
        f'width="{number(max(three - quarter, 1.0))}" height="7"><title>{escape(hint)}</title></rect>'
    )
    return drawn + ([marker(half, middle, of, hint)] if axis.holds(five[2]) else [])


def _sample(of: Key) -> str:
    return (
        f'<path class="line s{of.colour}" d="M0 0H24"/>'
        f'<rect class="box f{of.colour} s{of.colour}" x="6" y="-3.5" width="12" height="7"/>{marker(12, 0, of)}'
    )
