"""Layers: one row a layer; a bar for one series, with its whole behind it, and a shape each for several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .axis import around, usable
from .frame import EDGE, LINE, WIDTH, Item, heading, keys, legend, marker, picture
from .rows import rows
from .text import back, clean, escape, number, text, width

_WIDEST = 100.0  # of a column of numbers
_LANE, _LANES = 6.0, 30.0  # from one series to the next within a row, and from the first to the last at most


def layers(
    names: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    title: str,
    x: str,
    whole: float | Sequence[float] | None = None,
    texts: Mapping[str, Sequence[str]] | None = None,
    order: Sequence[str] = (),
    alt: str = "",
) -> str:
    """One value a layer and series, from zero; `whole` is what it is a part of, `texts` how a value is written."""
    for name, values in {**series, **(texts or {})}.items():
        if len(values) != len(names):
            raise ValueError(f"{name}: {len(values)} values for {len(names)} layers; give each layer one, or None")
    wholes = [float(whole)] * len(names) if isinstance(whole, (int, float)) else whole
    if wholes is not None and len(wholes) != len(names):
        raise ValueError(f"whole: {len(wholes)} values for {len(names)} layers; give one number, or one a layer")
    told = {name: (texts or {}).get(name) or [_value(v) for v in values] for name, values in series.items()}
    of_series = keys(series, order)
    single = len(series) == 1

    body, top = heading(title)
    if not single:
        drawn, top = legend([Item(marker(4, 0, k), 8.0, name) for name, k in of_series.items()], top)
        body += drawn
    words = back(clean(x), WIDTH - 2 * EDGE)
    body.append(text(words, WIDTH - EDGE, top + 12, style="dim", anchor="end", title=clean(x)))
    top += 16

    beside = 0.0
    if single:
        shown = [back(clean(t), _WIDEST) for t in next(iter(told.values()))]
        beside = max((width(t) for t in shown), default=0.0) + 6
    # a lane a series: values that are equal, as when all units live, must not hide each other
    lane = min(_LANE, _LANES / max(1, len(series) - 1))
    band = 12.0 + lane * (len(series) - 1)
    place = rows(names, top + LINE + 2, band, beside=beside)
    least = [0.0] + [v for values in series.values() for v in values if v is not None]
    axis = around([*least, *(wholes or ())], zero=True, room=0.0).at(place.left, place.right)
    if not single:  # a shape at the end of the axis has its half beyond
        axis = axis.at(place.left + 5, place.right - 5)
    drawn, height = place.ruled(axis, above=3)
    body += drawn

    zero = axis(0.0)
    for i, layer in enumerate(names):
        middle = place.middle(i)
        if wholes is not None and usable(wholes[i]):
            end = number(abs(axis(wholes[i]) - zero))
            y, high = number(middle - band / 2 + 1), number(band - 2)
            body.append(f'<rect class="whole" x="{number(zero)}" y="{y}" width="{end}" height="{high}"/>')
        elif not single:
            body.append(
                f'<line class="grid" x1="{number(place.left)}" x2="{number(place.right)}" y1="{number(middle)}" '
                f'y2="{number(middle)}"/>'
            )
        for j, (of, (name, values)) in enumerate(zip(of_series.values(), series.items())):
            value, said = values[i], clean(told[name][i])
            if usable(value) and value is not None:
                hint = f"{clean(layer)}: {said}" if single else f"{clean(name, 60)}, {clean(layer)}: {said}"
                if single:
                    body.append(_bar(zero, axis(value), middle, hint))
                else:
                    body.append(marker(axis(value), middle + lane * (j - (len(series) - 1) / 2), of, hint))
            if single:
                body.append(
                    text(back(said, _WIDEST), WIDTH - EDGE, middle + 4, style="value", anchor="end", title=said)
                )
    alt = alt or f"{x} by layer, from input to output, of {', '.join(series)}."
    return picture(body, height, title=title, alt=alt)


def _bar(zero: float, end: float, middle: float, hint: str) -> str:
    x, wide = min(zero, end), abs(end - zero)
    return (
        f'<rect class="bar f0" x="{number(x)}" y="{number(middle - 5)}" width="{number(wide)}" height="10">'
        f"<title>{escape(hint)}</title></rect>"
    )


def _value(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
