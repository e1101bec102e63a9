"""Lines: y against x, one line a series; spectra by rank, accuracy by rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .axis import Axis, around
from .frame import (
    EDGE,
    LINE,
    WIDTH,
    Key,
    heading,
    horizontal,
    items,
    keys,
    legend,
    mark_keys,
    mark_line,
    marker,
    picture,
)
from .text import back, clean, number, text, width

_HIGH = 190.0
_FEW = 40  # points: each has its marker; of more, every so many one
_MARKERS = 7

Points = Sequence[tuple[float, float]]


def lines(
    series: Mapping[str, Points],
    *,
    title: str,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = False,
    marks: Mapping[str, float] | None = None,
    order: Sequence[str] = (),
    alt: str = "",
) -> str:
    """y(x) of each series in its order, and named places on x; a line breaks at what has no logarithm."""
    names, marks = list(series), dict(marks or {})
    of_series = keys(series, order)
    drawable = [(a, b) for points in series.values() for a, b in points]
    across = around([a for a, b in drawable] + list(marks.values()), log=log_x)
    up = around([b for a, b in drawable], log=log_y, room=0.05)
    marks = {name: value for name, value in marks.items() if across.holds(value)}
    of_marks = mark_keys(of_series, marks)

    body, top = heading(title)
    drawn, top = legend(items({name: _sample(k) for name, k in of_series.items()}, 24.0, marks, of_marks), top)
    body += drawn

    body.append(text(back(clean(y), WIDTH - 2 * EDGE), EDGE, top + 12, style="dim", title=clean(y)))
    top += 24
    bottom = top + _HIGH
    rungs = up.ticks(6)
    left = EDGE + max([width(label) for _, label in rungs], default=0) + 6
    across, up = across.at(left + 4, WIDTH - EDGE - 6), up.at(bottom, top)

    for value, label in rungs:
        place = number(up(value))
        body.append(f'<line class="grid" x1="{number(left)}" x2="{number(WIDTH - EDGE)}" y1="{place}" y2="{place}"/>')
        body.append(text(label, left - 6, up(value) + 4, style="dim rung", anchor="end"))
    body += horizontal(across, _ticks(across, drawable), top, bottom, bottom + 15)
    body.append(f'<path class="axis" d="M{number(left)} {number(top)}V{number(bottom)}H{number(WIDTH - EDGE)}"/>')
    words = back(clean(x), WIDTH - 2 * EDGE)
    body.append(text(words, WIDTH - EDGE, bottom + 15 + LINE, style="dim", anchor="end", title=clean(x)))

    for name, value in marks.items():
        body += mark_line(across(value), top, bottom, of_marks[name], f"{clean(name)} at {value:.4g}")
    for i, (name, points) in enumerate(series.items()):
        body += _line(points, across, up, of_series[name], clean(name), i / max(1, len(names)))
    if not any(across.holds(a) and up.holds(b) for a, b in drawable):
        body.append(text("no numbers to draw", (left + WIDTH - EDGE) / 2, (top + bottom) / 2, anchor="middle"))
    alt = alt or f"Lines: {y} against {x}, for {', '.join(names)}."
    return picture(body, bottom + 15 + LINE + 10, title=title, alt=alt)


def _line(points: Points, across: Axis, up: Axis, of: Key, name: str, shift: float) -> list[str]:
    """One path, broken where a point cannot be drawn, and markers."""
    placed = [(across(a), up(b)) if across.holds(a) and up.holds(b) else None for a, b in points]
    path, pen = "", "M"
    for place in placed:
        if place:
            path += f"{pen}{number(place[0])} {number(place[1])}"
        pen = "L" if place else "M"
    found = []
    if path:
        dashes = f' stroke-dasharray="{of.dash}"' if of.dash else ""
        found.append(f'<path class="line s{of.colour}"{dashes} d="{path}"/>')
    shown = [(i, place) for i, place in enumerate(placed) if place]
    if len(shown) > _FEW:  # spread evenly over the width, and each series at other places than its neighbours
        chosen: dict[int, tuple[int, tuple[float, float]]] = {}
        for i, place in shown:
            step = (across.end - across.start) / _MARKERS
            chosen.setdefault(int((place[0] - across.start) / step - shift), (i, place))
        shown = [chosen[step] for step in sorted(chosen) if step >= 0]
    return found + [marker(*place, of, f"{name}: {points[i][0]:.6g}, {points[i][1]:.6g}") for i, place in shown]


def _ticks(across: Axis, drawable: Points) -> list[tuple[float, str]]:
    """Where a few values were tried, these themselves; else round numbers."""
    tried = sorted({a for a, _ in drawable if across.holds(a)})
    if 1 <= len(tried) <= 8 and len(drawable) > 0:
        return [(a, f"{a:,.6g}".replace("-", "−")) for a in tried]
    return across.ticks(6)


def _sample(of: Key) -> str:
    dashes = f' stroke-dasharray="{of.dash}"' if of.dash else ""
    return f'<path class="line s{of.colour}"{dashes} d="M0 0H24"/>{marker(12, 0, of)}'
