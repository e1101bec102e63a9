"""Lines: y against x for each series, with bands of deviation, in one panel or in several that share the y-axis."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from .frame import (
    EDGE,
    INK,
    LINE,
    WIDTH,
    LegendItem,
    SeriesStyle,
    axis_label,
    heading,
    legend,
    line_sample,
    marker,
    rule,
    series_styles,
    svg_document,
    x_ticks,
)  # fmt: skip
from .scale import ChartScale, scale_around
from .svg_text import coordinate, cut_end, one_line, text_line, text_width

_HEIGHT = 190.0  # height of a panel
_WIDEST_LABEL = 80.0  # widest label of a tick
_ALL_MARKERS = 40  # points; a series with more has only about _SOME_MARKERS markers
_SOME_MARKERS = 7
_CROSS = "M-3.5 -3.5L3.5 3.5M-3.5 3.5L3.5 -3.5"
_LEVEL = SeriesStyle(INK, "", "5 3")
_DOTS = "1.5 3"

Points = Sequence[tuple[float, ...]]  # (x, y), or (x, y, deviation of y)


@dataclass(frozen=True)
class Panel:
    """The series against one x-axis."""

    series: Mapping[str, Points]
    x: str
    log_x: bool = False
    ticks: Mapping[float, str] | None = None  # {x: label}; None: chosen from the points
    reverse_x: bool = False  # the largest x is on the left
    crosses: Mapping[str, Collection[float]] = field(default_factory=dict)  # {series: x at which it has no y}
    dotted: Collection[str] = ()  # series of one point that are continued as a dotted line, to compare with

    def tick_labels(self, scale: ChartScale) -> list[tuple[float, str]]:
        """The x values themselves if there are few, else round numbers."""
        if self.ticks is not None:
            return [(x, cut_end(one_line(label), _WIDEST_LABEL)) for x, label in self.ticks.items()]
        tried = sorted({point[0] for points in self.series.values() for point in points if scale.can_draw(point[0])})
        if 1 <= len(tried) <= 8:
            return [(a, f"{a:,.6g}".replace("-", "−")) for a in tried]
        return scale.ticks(6)

    def x_text(self, x: float) -> str:
        return (self.ticks or {}).get(x, f"{x:.6g}")


def draw_panels(
    panels: Sequence[Panel],
    *,
    title: str,
    y: str,
    log_y: bool = False,
    levels: Mapping[str, tuple[float, float]] | None = None,
    order: Sequence[str] = (),
    alt: str,
) -> str:
    """Panels below each other; the first one has all series. `levels` are {name: (y, deviation)}, horizontal lines.

    A line breaks where a value has no logarithm.
    """
    levels = levels or {}
    ends = [
        end
        for _, *values in [p for panel in panels for points in panel.series.values() for p in points]
        + [(0.0, *level) for level in levels.values()]
        for end in _ends(values)
    ]
    up = scale_around(ends, log=log_y, room=0.05)
    styles = series_styles(panels[0].series, order)

    body, top = heading(title)
    drawn, top = legend(_legend(panels, styles, levels), top)
    body += drawn
    for panel in panels:
        body.append(axis_label(y, top + 12, anchor="start"))
        body += _panel(panel, up, styles, levels, top + 24)
        top += 24 + _HEIGHT + 15 + LINE + 10
    return svg_document(body, top, title=title, alt=alt, more_rules=".hfpx .band{fill-opacity:.16}\n")


def _ends(values: Sequence[float]) -> tuple[float, ...]:
    """The y of a point, and both ends of its deviation."""
    middle, deviation = values[0], values[1] if len(values) > 1 else 0.0
    return (middle, middle - deviation, middle + deviation) if deviation else (middle,)


def _legend(
    panels: Sequence[Panel], styles: Mapping[str, SeriesStyle], levels: Mapping[str, tuple[float, float]]
) -> list[LegendItem]:
    items = [LegendItem(line_sample(style), 24.0, name) for name, style in styles.items()]
    others = [LegendItem(line_sample(_LEVEL, with_marker=False), 24.0, name) for name in levels]
    if any(panel.crosses for panel in panels):
        others.append(LegendItem(_cross(5, 0, INK), 10.0, "collapsed"))
    return items + others if others or len(items) > 1 else []  # the title names a single series


def _x_scale(panel: Panel) -> ChartScale:
    places = [point[0] for points in panel.series.values() for point in points]
    places += [x for at in panel.crosses.values() for x in at]
    return scale_around(places, log=panel.log_x)


def _panel(
    panel: Panel,
    up: ChartScale,
    styles: Mapping[str, SeriesStyle],
    levels: Mapping[str, tuple[float, float]],
    top: float,
) -> list[str]:
    bottom, right = top + _HEIGHT, WIDTH - EDGE
    rungs = up.ticks(6)
    left = EDGE + max([text_width(label) for _, label in rungs], default=0) + 6
    ends = (right - 6, left + 4) if panel.reverse_x else (left + 4, right - 6)
    across, up = _x_scale(panel).between(*ends), up.between(bottom, top)
    body = []
    for value, label in rungs:
        body.append(rule(left, up(value), right, up(value), "grid"))
        body.append(text_line(label, left - 6, up(value) + 4, style="dim rung", anchor="end"))
    body += x_ticks(across, panel.tick_labels(across), top, bottom, bottom + 15)
    body += [rule(left, top, left, bottom, "axis"), rule(left, bottom, right, bottom, "axis")]
    body.append(axis_label(panel.x, bottom + 15 + LINE))

    for value, deviation in levels.values():
        body += _level(value, deviation, up, left, right)
    for i, (name, points) in enumerate(panel.series.items()):
        if name in panel.dotted and len(points) == 1 and up.can_draw(points[0][1]):
            y = up(points[0][1])
            body.append(rule(left, y, right, y, f"line s{styles[name].colour}", _DOTS))
        body += _line(panel, name, across, up, styles[name], i / max(1, len(panel.series)))
    for name, places in panel.crosses.items():
        body += [_cross(across(x), bottom, styles[name].colour) for x in places if across.can_draw(x)]
    points = [point for series in panel.series.values() for point in series]
    if not panel.crosses and not any(across.can_draw(p[0]) and up.can_draw(p[1]) for p in points):
        body.append(text_line("no numbers to draw", (left + right) / 2, (top + bottom) / 2, anchor="middle"))
    return body


def _level(value: float, deviation: float, up: ChartScale, left: float, right: float) -> list[str]:
    """A horizontal line with its band."""
    if not all(map(up.can_draw, _ends((value, deviation)))):
        return []
    high, low = up(value + deviation), up(value - deviation)
    band = [_band([(left, high), (right, high), (right, low), (left, low)], _LEVEL)] if deviation else []
    return [*band, rule(left, up(value), right, up(value), f"line s{INK}", _LEVEL.dash)]


def _cross(x: float, y: float, colour: int) -> str:
    return f'<path class="line s{colour}" transform="translate({coordinate(x)} {coordinate(y)})" d="{_CROSS}"/>'


def _line(panel: Panel, name: str, across: ChartScale, up: ChartScale, style: SeriesStyle, shift: float) -> list[str]:
    """The band, the line, broken where a point cannot be drawn, and the markers."""
    points = panel.series[name]
    placed = [(across(p[0]), up(p[1])) if across.can_draw(p[0]) and up.can_draw(p[1]) else None for p in points]
    path, pen = "", "M"
    for place in placed:
        if place:
            path += f"{pen}{coordinate(place[0])} {coordinate(place[1])}"
        pen = "L" if place else "M"
    found = _deviation(points, across, up, style)
    if path:
        found.append(f'<path class="line s{style.colour}"{style.dashes} d="{path}"/>')
    shown = [(i, place) for i, place in enumerate(placed) if place]
    if len(shown) > _ALL_MARKERS:  # evenly spaced, and shifted so that those of two series do not meet
        chosen: dict[int, tuple[int, tuple[float, float]]] = {}
        step = (across.end - across.start) / _SOME_MARKERS
        for i, place in shown:
            chosen.setdefault(int((place[0] - across.start) / step - shift), (i, place))
        shown = [chosen[step] for step in sorted(chosen) if step >= 0]
    for i, place in shown:
        x, y, *deviation = points[i]
        plus_minus = f" ± {deviation[0]:.3g}" if deviation and deviation[0] else ""
        found.append(marker(*place, style, f"{one_line(name)}: {panel.x_text(x)}, {y:.6g}{plus_minus}"))
    return found


def _deviation(points: Points, across: ChartScale, up: ChartScale, style: SeriesStyle) -> list[str]:
    """A band around the line, or an error bar if there is only one point."""
    ends = [(across(p[0]), up(p[1] + p[2]), up(p[1] - p[2])) for p in points if _has_deviation(p, across, up)]
    if not any(high != low for _, high, low in ends):
        return []
    if len(ends) > 1:
        return [_band([(x, high) for x, high, _ in ends] + [(x, low) for x, _, low in reversed(ends)], style)]
    ((x, high, low),) = ends
    caps = [(x - 3, high, x + 3, high), (x, high, x, low), (x - 3, low, x + 3, low)]
    return [rule(*cap, f"line s{style.colour}") for cap in caps]


def _has_deviation(point: tuple[float, ...], across: ChartScale, up: ChartScale) -> bool:
    return len(point) > 2 and across.can_draw(point[0]) and all(map(up.can_draw, _ends(point[1:])))


def _band(corners: Sequence[tuple[float, float]], style: SeriesStyle) -> str:
    path = "L".join(f"{coordinate(x)} {coordinate(y)}" for x, y in corners)
    return f'<path class="band f{style.colour}" d="M{path}Z"/>'
