"""Charts with one row per layer, from input to output: bars or markers of one value, and box plots of five quantiles.

The name of a layer is at the left of its row, or above it if names are long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .frame import (
    EDGE,
    INK,
    INNER,
    LINE,
    WIDTH,
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
    x_ticks,
)
from .scale import ChartScale, is_drawable, scale_around
from .svg_text import TEXT_SIZE, coordinate, cut_end, cut_front, escape, one_line, text_line, text_width

FiveQuantiles = tuple[float, float, float, float, float]
_WIDEST_NAME = 175.0  # units; blocks.11.attn.qkv.weight fits
_WIDEST_NUMBER = 100.0
_NARROWEST_PLOT = 90.0
_MANY = 25  # rows; with more, the tick labels are repeated below
_LANE, _ALL_LANES = 6.0, 30.0  # from one series to the next within a row; from the first to the last at most
_BOX = 11.0  # height of a row of a box plot


def draw_layers(
    names: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    title: str,
    x: str,
    alt: str,
    total: float | None = None,
    texts: Mapping[str, Sequence[str]] | None = None,
    order: Sequence[str] = (),
) -> str:
    """Values start at zero; `total` is what they are a part of, `texts` how they are written."""
    texts = texts or {
        name: ["–" if value is None else f"{value:.4g}" for value in values] for name, values in series.items()
    }
    styles = series_styles(series, order)
    single = len(series) == 1

    body, top = heading(title)
    if not single:
        drawn, top = legend([LegendItem(marker(4, 0, style), 8.0, name) for name, style in styles.items()], top)
        body += drawn
    body.append(axis_label(x, top + 12))
    # each series has a lane of its own: equal values, such as layers that keep all units, must not hide each other
    lane = min(_LANE, _ALL_LANES / max(1, len(series) - 1))
    band = 12.0 + lane * (len(series) - 1)
    numbers = [cut_end(one_line(t), _WIDEST_NUMBER) for t in next(iter(texts.values()))] if single else []
    beside = max(map(text_width, numbers), default=0.0) + 6 if single else 0.0
    rows = _layer_rows(names, top + 16 + LINE + 2, band, beside=beside)
    shown = [0.0] + [v for values in series.values() for v in values if v is not None]
    margin = 0 if single else 5  # half of a marker at the end of the scale
    scale = scale_around([*shown, total], zero=True, room=0.0)
    scale = scale.between(rows.left + margin, rows.right - margin)
    drawn, height = rows.draw_axis(scale, above=3)
    body += drawn

    zero = scale(0.0)
    for i, layer in enumerate(map(one_line, names)):
        y = rows.middle(i)
        if total is not None:
            box = rect_attributes(zero, y - band / 2 + 1, scale(total) - zero, band - 2)
            # the class name stays, so that the density.svg of a ticket stays the same to the byte
            body.append(f'<rect class="whole" {box}/>')
        elif not single:
            body.append(rule(rows.left, y, rows.right, y, "grid"))
        for j, (name, values) in enumerate(series.items()):
            text = one_line(texts[name][i])
            if single:
                body += _bar(values[i], scale, y, f"{layer}: {text}")
                number = cut_end(text, _WIDEST_NUMBER)
                body.append(text_line(number, WIDTH - EDGE, y + 4, style="value", anchor="end", title=text))
            elif (value := values[i]) is not None and is_drawable(value):
                tooltip = f"{one_line(name, 60)}, {layer}: {text}"
                body.append(marker(scale(value), y + lane * (j - (len(series) - 1) / 2), styles[name], tooltip))
    return svg_document(body, height, title=title, alt=alt)


def _bar(value: float | None, scale: ChartScale, y: float, tooltip: str) -> list[str]:
    if value is None or not is_drawable(value):
        return []
    start, end = sorted((scale(0.0), scale(value)))
    box = rect_attributes(start, y - 5, end - start, 10)
    return [f'<rect class="bar f0" {box}><title>{escape(tooltip)}</title></rect>']


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

    rows = _layer_rows(layers, top + 16 + LINE + 8, _BOX)
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


@dataclass(frozen=True)
class _LayerRows:
    """Layer i is drawn around middle(i), between left and right."""

    names: tuple[str, ...]
    names_above: bool
    left: float
    right: float
    top: float
    band: float  # height of what is drawn
    gap: float  # between two layers

    @property
    def step(self) -> float:
        return self.band + self.gap + (TEXT_SIZE + 2 if self.names_above else 0)

    @property
    def bottom(self) -> float:
        return self.top + self.step * len(self.names)

    def middle(self, i: int) -> float:
        return self.top + self.step * (i + 1) - (self.band + self.gap) / 2

    def draw_axis(self, scale: ChartScale, above: float) -> tuple[list[str], float]:
        """Vertical rules with labels, the names of the layers, and the y coordinate where all this ends."""
        ticks = scale.ticks(4 if self.right - self.left < 200 else 6)
        found = x_ticks(scale, ticks, self.top - above, self.bottom + 2, self.top - above - 4)
        end = self.bottom + 10
        if len(self.names) > _MANY:
            found += x_ticks(scale, ticks, self.bottom, self.bottom + 2, self.bottom + 14)
            end += 12
        return found + self._labels(), end

    def _labels(self) -> list[str]:
        found = []
        for i, name in enumerate(map(one_line, self.names)):
            if self.names_above:
                baseline = self.middle(i) - self.band / 2 - 3
                found.append(text_line(cut_front(name, INNER), EDGE, baseline, style="name", title=name))
            else:
                shown, baseline = cut_front(name, self.left - EDGE), self.middle(i) + 4
                found.append(text_line(shown, self.left - 6, baseline, style="name", anchor="end", title=name))
        return found


def _layer_rows(names: Sequence[str], top: float, band: float, beside: float = 0.0) -> _LayerRows:
    """`beside` units stay free at the right, for numbers."""
    widest = max((text_width(one_line(name)) for name in names), default=0.0)
    above = widest > min(_WIDEST_NAME, INNER - 6 - beside - _NARROWEST_PLOT)
    left = EDGE if above else EDGE + widest + 6
    gap = 9.0 if above else 4.0  # a name must be nearer to its own row than to the one before
    return _LayerRows(tuple(names), above, left, WIDTH - EDGE - beside, top, band, gap)
