"""Rows of results.csv, one per cell, and their columns by method, value and seed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from statistics import stdev
from typing import Any

from .cells import SPARSITY, Cell, SweepAxis

# the metric of table and figure, and the name of the figure: the first that the cells have
TITLES = {"accuracy": "accuracy", "mean_iou": "mean IoU"}
COLUMNS = (
    "model", "data", "method", "sparsity", "true_sparsity", "seed", "dense_accuracy", "pruned_accuracy",
    "ticket_accuracy", "dense_top_5_accuracy", "pruned_top_5_accuracy", "ticket_top_5_accuracy", "dense_mean_iou",
    "pruned_mean_iou", "ticket_mean_iou", "kept", "total",
    "mask_digest", "bytes", "seconds", "rounds", "per_class", "pruning_seconds", "overlap", "outcome",
    "ridge_accuracy", "ridge_dense_accuracy",
)  # fmt: skip


def row(cell: Cell, results: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the CSV. `seconds` do not count the dense twin, which one cell trains and the others find cached."""
    settings, found = results["settings"], results["results"]
    mask, sizes = results.get("mask", {}), results.get("bytes", {})
    metrics = {
        f"{stage}_{metric}": found.get(stage, {}).get(metric, "")
        for metric in ("accuracy", "top_5_accuracy", "mean_iou")
        for stage in ("dense", "pruned", "ticket")
    }
    values = {
        "model": settings["model"], "data": settings["data"], "method": cell.method,
        "sparsity": settings["sparsity"], "true_sparsity": mask.get("sparsity", ""), "seed": cell.seed, **metrics,
        "kept": mask.get("kept", ""), "total": mask.get("total", ""), "mask_digest": mask.get("digest", ""),
        "bytes": sizes.get("ticket.safetensors", sizes.get("model.safetensors", "")),
        "seconds": round(sum(value for name, value in results["seconds"].items() if name != "dense"), 2),
        "rounds": settings.get("rounds", ""), "per_class": settings.get("per_class", ""),
        "pruning_seconds": results["seconds"].get("pruning", ""), "overlap": "",
        "outcome": "finished" if results["finished"] else "collapsed",
        **{f"{name}_accuracy": found.get(name, {}).get("accuracy", "") for name in ("ridge", "ridge_dense")},
    }  # fmt: skip
    return {name: values[name] for name in COLUMNS}


def as_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def metric_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """The metric that the methods are compared by: accuracy or mean IoU."""
    return next(metric for metric in TITLES if any(line.get(f"ticket_{metric}", "") != "" for line in rows))


def by_seed(rows: Sequence[Mapping[str, Any]], axis: SweepAxis = SPARSITY) -> dict[str, dict[float, list[float]]]:
    """{method: {value: the metric in %, one per seed}}; a collapsed method has none."""
    found = column(rows, f"ticket_{metric_of(rows)}", axis)
    return {method: {v: [100 * each for each in values] for v, values in at.items()} for method, at in found.items()}


def column(rows: Sequence[Mapping[str, Any]], key: str, axis: SweepAxis) -> dict[str, dict[float, list[float]]]:
    """{method: {value: that column of the CSV, one per seed}}"""
    found: dict[str, dict[float, list[float]]] = {line["method"]: {} for line in rows}
    for line in rows:
        if line.get(key, "") != "":
            found[line["method"]].setdefault(line[axis.key], []).append(line[key])
    return found


def dense_by_seed(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """The metric of the dense twin in %, one per seed."""
    key = f"dense_{metric_of(rows)}"
    return list({line["seed"]: 100 * line[key] for line in rows if line[key] != ""}.values())


def sample_deviation(values: Sequence[float]) -> float:
    """√(Σ (a - mean)² / (n - 1)); 0 for a single value."""
    return stdev(values) if len(values) > 1 else 0.0
