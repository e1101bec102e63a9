"""The figure: the metric against the axis, a line a method, the dense network as a level; by matplotlib."""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from .cells import ROUNDS, SPARSITY, Axis, percent, single_shot
from .rows import TITLES, by_seed, column, dense_by_seed, metric_of, spread

# Okabe and Ito's, which colour-blind readers tell apart, without their yellow: too pale for a line on white
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
_LEAST_SECONDS = 0.01  # results.json has two decimals, and a log axis no zero
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h")


def as_figure(rows: Sequence[Mapping[str, Any]], title: str, kind: str, axis: Axis = SPARSITY) -> bytes:
    """The metric against the axis on a log scale, dense as a line; if the axis is timed, against the seconds as well.

    Sparsities lie by the density that they leave: there the paper's nine are even, with the dense end on the left.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "hf_px", "font.size": 10, "svg.fonttype": "none"}):
        figure = Figure(figsize=(10.4 if axis.timed else 7.2, 4.2), layout="constrained")
        panels = list(figure.subplots(1, 2 if axis.timed else 1, sharey=True, squeeze=False)[0])
        _lines(panels[0], rows, axis)
        if axis.timed:
            _lines(panels[1], rows, axis, column(rows, "pruning_seconds", axis))
        _dense_line(panels, rows)
        _collapsed_marks(panels[0], rows, axis)
        _value_axis(panels[0], sorted({line[axis.key] for line in rows}), axis)
        panels[0].set_ylabel(f"test {TITLES[metric_of(rows)]}, %")
        most = len({line["seed"] for line in rows})
        said = f"{title}{f', {most} seeds: mean ± deviation' if most > 1 else ''}"
        if len(panels) > 1:
            figure.suptitle(said, fontsize=10, x=0.01, ha="left")
        else:
            panels[0].set_title(said, fontsize=10, loc="left")
        for panel in panels:
            panel.grid(True, color="0.9", linewidth=0.8)
            panel.set_axisbelow(True)
            panel.spines[["top", "right"]].set_visible(False)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
        file = io.BytesIO()
        # no date: the same results give the same bytes
        figure.savefig(file, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
    return file.getvalue()


def _lines(
    axes: Any,
    rows: Sequence[Mapping[str, Any]],
    axis: Axis,
    seconds: Mapping[str, Mapping[float, Sequence[float]]] | None = None,
) -> None:
    """A line a method, its deviation as a band; by the axis, or by the seconds that the pruning took."""
    found = by_seed(rows, axis)
    shown = {line[axis.key] for line in rows}
    for i, (method, at) in enumerate(found.items()):
        colour, marker = _COLOURS[i % len(_COLOURS)], _MARKERS[i % len(_MARKERS)]
        values = sorted(at)
        if seconds is not None:
            x = [max(mean(seconds[method][v]), _LEAST_SECONDS) for v in values]
        elif len(shown) == 1 and values:  # side by side, not on top of each other
            x = [axis.place(values[0]) * 1.02 ** ((len(found) - 1) / 2 - i)]
        else:
            x = [axis.place(v) for v in values]
        middle, width = [mean(at[v]) for v in values], [spread(at[v]) for v in values]
        low, high = [m - w for m, w in zip(middle, width)], [m + w for m, w in zip(middle, width)]
        line = "-" if i < len(_COLOURS) else "-."
        axes.plot(x, middle, line, color=colour, marker=marker, markersize=5, linewidth=1.5, label=method)
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        if len(x) == 1:  # a single point has no area to shade
            if width[0]:
                axes.errorbar(x, middle, width, color=colour, capsize=3, linewidth=1)
            if axis is ROUNDS and seconds is None and single_shot(method) and len(shown) > 1:
                axes.axhline(middle[0], color=colour, linestyle=":", linewidth=0.9, alpha=0.7)  # to compare with
    axes.set_xscale("log")
    if seconds is not None:
        _seconds_axis(axes, [second for at in seconds.values() for taken in at.values() for second in taken])


def _dense_line(panels: Sequence[Any], rows: Sequence[Mapping[str, Any]]) -> None:
    if dense := dense_by_seed(rows):
        low, high = mean(dense) - spread(dense), mean(dense) + spread(dense)
        for axes in panels:
            axes.axhline(mean(dense), color="0.35", linestyle="--", linewidth=1.2, label="dense")
            axes.axhspan(low, high, color="0.35", alpha=0.1, linewidth=0)


def _seconds_axis(axes: Any, seconds: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda x, _: ""))
    low, high = (max(end(seconds, default=1.0), _LEAST_SECONDS) for end in (min, max))
    if high < 10 * low:  # perhaps no power of ten lies between
        axes.set_xticks(sorted({float(f"{low:.2g}"), float(f"{high:.2g}")}))
    lowest = f"; {_LEAST_SECONDS} may be less" if min(seconds, default=1.0) < _LEAST_SECONDS else ""
    axes.set_xlabel(f"seconds of pruning, measured once a run{lowest}")


def _collapsed_marks(axes: Any, rows: Sequence[Mapping[str, Any]], axis: Axis) -> None:
    """A cross on the lower edge where a method left no path: it has no accuracy to draw."""
    methods = list(dict.fromkeys(line["method"] for line in rows))
    lost = dict.fromkeys((line["method"], line[axis.key]) for line in rows if line.get("outcome") == "collapsed")
    for i, (method, value) in enumerate(lost):
        axes.plot(
            [axis.place(value)], [0], "x", color=_COLOURS[methods.index(method) % len(_COLOURS)], markersize=7,
            markeredgewidth=1.8, label="" if i else "collapsed", clip_on=False, transform=axes.get_xaxis_transform(),
        )  # fmt: skip


def _value_axis(axes: Any, shown: Sequence[float], axis: Axis) -> None:
    from matplotlib.ticker import NullLocator

    label = axis.label
    if axis is SPARSITY:
        axes.invert_xaxis()
        label += ", on a log scale of those left" if len(shown) > 1 else ""
    ticks = _apart(shown, axis)
    axes.set_xticks([axis.place(v) for v in ticks], [percent(v) if axis is SPARSITY else f"{v:g}" for v in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)


def check_figures() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("the figure needs matplotlib, which is not here; pip install 'hf-px[recipes]'")


def _apart(values: Sequence[float], axis: Axis) -> list[float]:
    """Those whose labels do not run into each other: a tenth of the axis between them."""
    places = [math.log(axis.place(v)) for v in values]
    kept: list[int] = []
    for i in reversed(range(len(places))):
        if not kept or abs(places[kept[-1]] - places[i]) > 0.1 * abs(places[-1] - places[0]):
            kept.append(i)
    return [values[i] for i in reversed(kept)]
