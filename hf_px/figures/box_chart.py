"""A box plot: five quantiles per layer, and a threshold as a vertical line across all layers."""

from __future__ import annotations

from collections.abc import Sequence

from .frame import (
    INK,
    LINE,
    LegendItem,
    SeriesStyle,
    axis_label,
    heading,
    legend,
    marker,
    rect_attributes,
    rule,
    series_style,
    series_styles,
    svg_document,
)  # fmt: skip
from .layer_rows import layer_rows
from .scale import ChartScale, scale_around
from .svg_text import coordinate, escape, one_line

FiveQuantiles = tuple[float, float, float, float, float]
_LANE = 11.0  # height of one box


def draw_boxes(
    layers: Sequence[str],
    boxes: Sequence[FiveQuantiles | None],
    *,
    name: str,
    title: str,
    x: str,
    alt: str,
    threshold: float | None = None,
    order: Sequence[str] = (),
) -> str:
    """(minimum, quartile, median, quartile, maximum) as a line, a box and a marker at the median, on a log scale.

    `name` is that of the series. Zero is beyond the left end of a log scale: the line then runs to that end and has an
    arrow.
    """
    scale = scale_around([*(value for five in boxes if five for value in five), threshold], log=True)
    style = series_styles([name], order)[name]
    # the text colour, and a shape that the series does not have
    threshold_style = series_style(1 if style == series_style(0) else 0)._replace(colour=INK)
    if not scale.can_draw(threshold):
        threshold = None

    body, top = heading(title)
    if threshold is not None:
        line = rule(5, -5, 5, 6, f"line s{INK}", threshold_style.dash) + marker(5, -4, threshold_style)
        items = [LegendItem(_sample(style), 24.0, name), LegendItem(line, 10.0, "threshold", f" at {threshold:.3g}")]
        drawn, top = legend(items, top)
        body += drawn
    body.append(axis_label(x, top + 12))

    rows = layer_rows(layers, top + 16 + LINE + 8, _LANE)
    scale = scale.between(rows.left + 6, rows.right - 4)
    drawn, height = rows.draw_axis(scale, above=9)
    body += drawn
    if threshold is not None:
        at = scale(threshold)
        body.append(rule(at, rows.top - 4, at, rows.bottom, f"line s{INK}", threshold_style.dash))
        body.append(marker(at, rows.top - 4, threshold_style, f"threshold at {threshold:.4g}"))
    for i, (layer, five) in enumerate(zip(layers, boxes, strict=True)):
        if five is not None:
            tooltip = f"{one_line(name, 60)}, {one_line(layer)}: {', '.join(f'{value:.4g}' for value in five)}"
            body += _box(five, scale, rows.left, rows.middle(i), style, tooltip)
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
