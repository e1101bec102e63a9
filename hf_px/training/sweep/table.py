"""table.md: methods x values, mean ± deviation over seeds; ablations in the layout of the paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from .cells import NO_PATH, ROUNDS, SPARSITY, SweepAxis, single_shot
from .rows import TITLES, by_seed, column, dense_by_seed, metric_of, sample_deviation


def as_table(rows: Sequence[Mapping[str, Any]], title: str, axis: SweepAxis = SPARSITY, where: str = "") -> str:
    """mean ± deviation over seeds, methods x values; with the seconds of pruning if the axis is timed."""
    found, dense = by_seed(rows, axis), dense_by_seed(rows)
    values = sorted({line[axis.key] for line in rows})
    most = len({line["seed"] for line in rows})
    best = {v: max((mean(at[v]) for at in found.values() if v in at), default=math.nan) for v in values}
    lost = column([line for line in rows if line.get("outcome") == "collapsed"], "outcome", axis)
    taken = column(rows, "pruning_seconds", axis) if axis.timed else {}

    def shown(values: Sequence[float]) -> str:
        return f"{mean(values):.2f} ± {sample_deviation(values):.2f}" if len(values) > 1 else f"{mean(values):.2f}"

    def entry(method: str, value: float) -> str:
        got, gone = found[method].get(value), len(lost.get(method, {}).get(value, ()))
        if not got:
            return "collapsed" if gone else ""
        text = f"**{shown(got)}**" if mean(got) == best[value] else shown(got)
        fewer = f"n={len(got)}{f', {gone} collapsed' if gone else ''}"
        return text if len(got) == most else f"{text} ({fewer})"

    def seconds(method: str, value: float) -> str:
        return f"{mean(got):.2f}" if (got := taken[method].get(value)) else ""

    columns = (entry, seconds) if axis.timed else (entry,)

    def line_of(method: str) -> str:
        only = 1 if axis is ROUNDS and single_shot(method) else None  # the one value that the method has
        texts = [text(method, v) if only in (None, v) else "–" for v in values for text in columns]
        return f"| {' | '.join([method, *texts])} |"

    metric = TITLES[metric_of(rows)]
    seeds = f"mean ± sample deviation over {most} seeds" if most > 1 else "1 seed"
    fewer = any(len(values) < most for at in found.values() for values in at.values())
    heads = [text for v in values for text in [axis.column(v), *(["s"] if axis.timed else [])]]
    lines = [
        f"# {title}",
        "",
        f"{metric[:1].upper()}{metric[1:]} on the test set in %, {seeds}, {axis.description}; the best of each "
        f"column in bold{'; (n=…) where fewer seeds are done' if fewer else ''}"
        f"{f'; collapsed: {NO_PATH}, so there was nothing to train' if lost else ''}.",
        "",
    ]
    if axis.timed:
        lines += [
            f"s: seconds of the pruning alone, measured once a run{', the mean over seeds' if most > 1 else ''}"
            f"{f' ({where})' if where else ''}. The paper has the 95th percentile of 100 measurements on a GPU; its "
            "seconds and these compare methods, not machines.",
            "",
        ]
    lines += [
        f"| {f'dense: {shown(dense)}' if dense else 'method'} | {' | '.join(heads)} |",
        f"|---{'|---' * len(heads)}|",
    ]
    if not axis.ablation:
        return "\n".join([*lines, *map(line_of, found)]) + "\n"
    for group, single in (("single-shot", True), ("iterative", False)):
        members = [method for method in found if single_shot(method) is single]
        lines += [f"| *{group}* |{' |' * len(heads)}", *map(line_of, members)] if members else []
    return "\n".join([*lines, *_overlap_table(rows, axis, values)]) + "\n"


def _overlap_table(rows: Sequence[Mapping[str, Any]], axis: SweepAxis, values: Sequence[float]) -> list[str]:
    """How far the value changes the mask, for methods with more than one value."""
    found = {method: at for method, at in column(rows, "overlap", axis).items() if len(at) > 1}
    if not found:
        return []
    return [
        "",
        "Overlap of a method's mask with its own at the largest value, |A ∩ B| / |A ∪ B|, mean over seeds:",
        "",
        f"| method | {' | '.join(map(axis.column, values))} |",
        f"|---{'|---' * len(values)}|",
        *(
            f"| {m} | {' | '.join(f'{mean(at[v]):.3f}' if v in at else '' for v in values)} |"
            for m, at in found.items()
        ),
    ]
