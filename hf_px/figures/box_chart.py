"""Box plots: five quantiles per layer and series, and thresholds as vertical lines across all layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from .frame import (
    LINE,
    SeriesStyle,
    axis_label,
    heading,
    legend,
    legend_items,
    mark_line,
    mark_styles,
    marker,
    rect_attributes,
    series_styles,
    svg_document,
)  # fmt: skip
from .layer_rows import layer_rows
from .scale import ChartScale, scale_around
from .svg_text import coordinate, escape, one_line

FiveQuantiles = tuple[float, float, float, float, float]
_LANE = 11.0  # height of one box


def draw_boxes(
    names: Sequence[str],
    series: Mapping[str, Sequence[FiveQuantiles | None]],
    *,
    title: str,
    x: str,
    marks: Mapping[str, float] | None = None,
    order: Sequence[str] = (),
    alt: str = "",
) -> str:
    """(minimum, quartile, median, quartile, maximum) as a line, a box and a marker at the median, on a log scale.

    Zero is beyond the left end of a log scale: the line then runs to that end and has an arrow.
    """
    for name, values in series.items():
        if len(values) != len(names):
            raise ValueError(f"{name}: {len(values)} boxes for {len(names)} layers; give one per layer, or None")
        for layer, five in zip(names, values):
            if five is not None and not all(a <= b for a, b in pairwise(five)):
                raise ValueError(f"{name}, {layer}: {five} are no quantiles; give them in increasing order")
    marks = dict(marks or {})
    found = [value for values in series.values() for five in values if five for value in five]
    scale = scale_around([*found, *marks.values()], log=True)
    marks = {name: value for name, value in marks.items() if scale.can_draw(value)}
    styles = series_styles(series, order)
    styles_of_marks = mark_styles(styles, marks)

    body, top = heading(title)
    samples = {name: _sample(style) for name, style in styles.items()}
    drawn, top = legend(legend_items(samples, marks, styles_of_marks), top)
    body += [*drawn, axis_label(x, top + 12)]
    top += 16

    rows = layer_rows(names, top + LINE + 8, _LANE * max(1, len(series)), gap=4.0 if len(series) < 2 else 10.0)
    scale = scale.between(rows.left + 6, rows.right - 4)
    drawn, height = rows.draw_axis(scale, above=9)
    body += drawn
    for name, value in marks.items():
        tooltip = f"{one_line(name)} at {value:.4g}"
        body += mark_line(scale(value), rows.top - 4, rows.bottom, styles_of_marks[name], tooltip)
    for i, layer in enumerate(names):
        for j, (name, values) in enumerate(series.items()):
            y = rows.middle(i) + _LANE * (j - (len(series) - 1) / 2)
            if (five := values[i]) is not None:
                tooltip = f"{one_line(name, 60)}, {one_line(layer)}: {', '.join(f'{value:.4g}' for value in five)}"
                body += _box(five, scale, rows.left, y, styles[name], tooltip)
    alt = alt or f"Distribution of {x} by layer, from input to output, of {', '.join(series)}."
    return svg_document(body, height, title=title, alt=alt)


def _box(five: FiveQuantiles, scale: ChartScale, left: float, y: float, style: SeriesStyle, tooltip: str) -> list[str]:
    if not all(scale.can_draw(value) or value <= 0 for value in five) or not scale.can_draw(five[4]):
        return []  # nothing above zero, or not a number
    low, quarter, median, three_quarters, high = (scale(v) if scale.can_draw(v) else left for v in five)
    line = f'<path class="line s{style.colour}"'
    drawn = [f'{line} d="M{coordinate(low)} {coordinate(y)}H{coordinate(high)}"/>']
    if not scale.can_draw(five[0]):
        drawn.append(f'{line} d="M{coordinate(left + 4)} {coordinate(y - 3)}l-4 3l4 3"/>')
    box = rect_attributes(quarter, y - 3.5, max(three_quarters - quarter, 1.0), 7)
    drawn.append(f'<rect class="box f{style.colour} s{style.colour}" {box}><title>{escape(tooltip)}</title></rect>')
    return drawn + ([marker(median, y, style, tooltip)] if scale.can_draw(five[2]) else [])


def _sample(style: SeriesStyle) -> str:
    return (
        f'<path class="line s{style.colour}" d="M0 0H24"/>'
        f'<rect class="box f{style.colour} s{style.colour}" x="6" y="-3.5" width="12" height="7"/>'
        f"{marker(12, 0, style)}"
    )
