"""One value per layer: bars for one series, with the total behind each bar, or markers for several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .frame import (
    EDGE,
    LINE,
    WIDTH,
    LegendItem,
    axis_label,
    heading,
    legend,
    marker,
    rect_attributes,
    rule,
    series_styles,
    svg_document,
)
from .layer_rows import layer_rows
from .scale import ChartScale, is_drawable, scale_around
from .svg_text import cut_end, escape, one_line, text_line, text_width

_WIDEST_NUMBER = 100.0  # units
_LANE, _ALL_LANES = 6.0, 30.0  # from one series to the next within a row; from the first to the last at most


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
    texts = texts or {name: [_value_text(v) for v in values] for name, values in series.items()}
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
    rows = layer_rows(names, top + 16 + LINE + 2, band, beside=beside)
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


def _value_text(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
