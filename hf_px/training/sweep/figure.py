"""The figure of a sweep: the metric against the axis, one line per method with mean and deviation over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from ...figures import Panel, draw_panels
from ...figures.scale import scale_around
from .cells import ROUNDS, SPARSITY, SweepAxis, percent_of, single_shot
from .rows import TITLES, by_seed, column, dense_by_seed, metric_of, sample_deviation

_Means = Mapping[str, Mapping[float, tuple[float, float]]]  # {method: {value: (mean, deviation)}}
_LEAST_SECONDS = 0.01  # results.json has two decimals, and a log scale has no zero


def as_figure(rows: Sequence[Mapping[str, Any]], title: str, axis: SweepAxis = SPARSITY) -> str:
    """An SVG with the dense network as a horizontal line; a timed axis adds a panel against the seconds of pruning.

    Sparsities are drawn by the density that they leave, on a log scale with the dense end on the left: the paper's
    nine sparsities are evenly spaced there.
    """
    seeds, dense = len({line["seed"] for line in rows}), dense_by_seed(rows)
    means = {
        method: {value: (mean(values), sample_deviation(values)) for value, values in sorted(at.items())}
        for method, at in by_seed(rows, axis).items()
    }
    panels = [_value_panel(rows, axis, means)]
    if axis.timed:
        panels.append(_seconds_panel(rows, axis, means))
    return draw_panels(
        panels,
        title=f"{title}{f', {seeds} seeds: mean ± deviation' if seeds > 1 else ''}",
        y=f"test {TITLES[metric_of(rows)]}, %",
        levels={"dense": (mean(dense), sample_deviation(dense))} if dense else {},
        alt=_alt(means, axis, dense),
    )


def _value_panel(rows: Sequence[Mapping[str, Any]], axis: SweepAxis, means: _Means) -> Panel:
    shown = sorted({line[axis.key] for line in rows})
    crosses: dict[str, list[float]] = {}
    for line in rows:
        if line.get("outcome") == "collapsed":
            crosses.setdefault(line["method"], []).append(axis.place(line[axis.key]))
    series = {}
    for i, (method, at) in enumerate(means.items()):
        # if there is one value only, the methods stand side by side instead of on top of each other
        shift = 1.02 ** ((len(means) - 1) / 2 - i) if len(shown) == 1 else 1.0
        series[method] = [(axis.place(value) * shift, *y) for value, y in at.items()]
    label = f"{axis.label}, on a log scale of those left" if axis is SPARSITY and len(shown) > 1 else axis.label
    return Panel(
        series,
        label,
        log_x=True,
        ticks={axis.place(v): percent_of(v) if axis is SPARSITY else f"{v:g}" for v in shown},
        reverse_x=axis is SPARSITY,
        crosses={method: list(dict.fromkeys(places)) for method, places in crosses.items()},
        dotted=[method for method in means if axis is ROUNDS and single_shot(method) and len(shown) > 1],
    )


def _seconds_panel(rows: Sequence[Mapping[str, Any]], axis: SweepAxis, means: _Means) -> Panel:
    seconds = column(rows, "pruning_seconds", axis)
    taken = [second for at in seconds.values() for each in at.values() for second in each]
    series = {
        method: [(max(mean(seconds[method][value]), _LEAST_SECONDS), *y) for value, y in at.items()]
        for method, at in means.items()
    }
    lowest = f"; {_LEAST_SECONDS} may be less" if min(taken, default=1.0) < _LEAST_SECONDS else ""
    places = [point[0] for points in series.values() for point in points]
    # round numbers as ticks: measured seconds would be labels such as 0.4372
    ticks = scale_around(places, log=True).ticks(6)
    return Panel(series, f"seconds of pruning, measured once a run{lowest}", log_x=True, ticks=dict(ticks))


def _alt(means: _Means, axis: SweepAxis, dense: Sequence[float]) -> str:
    lines = [
        f"{method}: {', '.join(f'{y:.2f} at {axis.column(value)}' for value, (y, _) in at.items()) or 'collapsed'}"
        for method, at in means.items()
    ]
    return "; ".join([*lines, *([f"dense: {mean(dense):.2f}"] if dense else [])])
