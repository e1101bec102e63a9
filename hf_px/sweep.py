"""A sweep's directory: cells/<method>-<sparsity>-s<seed>, a run each; of those finished, CSV, table and figure.

A cell's log is its lock: whoever runs it holds `flock` on the file that all its processes write to, and the kernel
lets go of it when the last of them is gone. A sweep may die while its cell lives on, and never do two run one cell.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import math
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from .runs import NAME, check_output
from .store import left_over, write_atomic

CSV, TABLE = "results.csv", "table.md"
# the metric that a table and a figure show, by which the figure is named: the first that the cells have
TITLES = {"accuracy": "accuracy", "mean_iou": "mean IoU"}
_OWN = {"cells", "logs", CSV, TABLE, *(f"{metric}.{kind}" for metric in TITLES for kind in ("svg", "png"))}
_OF_A_CELL = {"scorer", "sparsity", "seed", "rounds"}
COLUMNS = (
    "model", "data", "method", "sparsity", "true_sparsity", "seed", "dense_accuracy", "pruned_accuracy",
    "ticket_accuracy", "dense_top_5_accuracy", "pruned_top_5_accuracy", "ticket_top_5_accuracy", "dense_mean_iou",
    "pruned_mean_iou", "ticket_mean_iou", "kept", "total",
    "mask_digest", "bytes", "seconds",
)  # fmt: skip
# Okabe and Ito's, which colour-blind readers tell apart, without their yellow: too pale for a line on white
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h")


@dataclass(frozen=True)
class Cell:
    method: str
    sparsity: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.method}-{self.sparsity!r}-s{self.seed}"

    @property
    def kind(self) -> str:
        """The recipe that runs it."""
        return "imp" if self.method == "imp" else "prune_finetune"


class Sweep:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, cell: Cell) -> Path:
        return self.directory / "cells" / cell.name

    def log(self, cell: Cell) -> Path:
        return self.directory / "logs" / f"{cell.name}.log"

    # what is there

    def check(self, cells: Sequence[Cell], settings: Callable[[Cell], Mapping[str, Any]]) -> None:
        """Refuse, before any work, a directory of somebody else's and cells that were run with other settings."""
        if self.directory.exists() and not self.directory.is_dir():
            raise ValueError(f"--output_dir {self.directory} is a file; name a directory")
        names = sorted(path.name for path in self.directory.iterdir()) if self.directory.is_dir() else []
        for name in names:
            if name not in _OWN and not left_over(name):
                raise ValueError(f"--output_dir {self.directory} holds {name}, which no sweep wrote; name another one")
        asked = {cell: settings(cell) for cell in cells}
        for cell in dict.fromkeys([*cells, *self.found()]):
            if all(left_over(path.name) for path in self._entries(cell)):
                continue
            check_output(self.path(cell), cell.kind)
            was = self.told(cell)["settings"]
            # one of an earlier sweep stands in the same table: all but what makes a cell must be the same
            now = asked.get(cell) or {key: value for key, value in asked[cells[0]].items() if key not in _OF_A_CELL}
            for key, value in was.items():
                if now.get(key) is not None and json.loads(json.dumps(now[key])) != value:
                    raise ValueError(
                        f"{self.path(cell)} was run with other settings: {key} was {value!r}, now {now[key]!r}; name "
                        "another --output_dir, or remove that cell"
                    )

    def found(self) -> list[Cell]:
        """Cells that are there already; a sweep may grow, so there may be more than are asked for."""
        cells = []
        for path in sorted((self.directory / "cells").glob(f"*/{NAME}")):
            told = json.loads(path.read_text(encoding="utf-8"))["settings"]
            cell = Cell(told["scorer"], told["sparsity"], told["seed"])
            if cell.name != path.parent.name:
                raise ValueError(f"{path.parent} holds the run {cell.name}; was it moved there? Remove it")
            cells.append(cell)
        return cells

    def told(self, cell: Cell) -> dict[str, Any]:
        """results.json of a cell that was begun; empty before that."""
        path = self.path(cell) / NAME
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def finished(self, cell: Cell) -> bool:
        return bool(self.told(cell).get("finished"))

    def state(self, cell: Cell) -> str:
        told = self.told(cell)
        if told.get("finished"):
            found = told["results"]["ticket"]
            return "finished, " + ", ".join(f"{TITLES[key]} {found[key]:.2%}" for key in TITLES if key in found)
        if self.log(cell).is_file():
            with open(self.log(cell), "ab") as log:
                if not _lock(log):
                    return "running"
        return "unfinished" if told else "to do"

    def _entries(self, cell: Cell) -> list[Path]:
        return list(self.path(cell).iterdir()) if self.path(cell).is_dir() else []

    # to run one

    def start(self, cell: Cell, command: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """Run the command, with --resume if the cell was begun; None if somebody else does, or has done, just now."""
        self.log(cell).parent.mkdir(parents=True, exist_ok=True)
        with open(self.log(cell), "ab") as log:
            if not _lock(log):
                return None
            told = self.told(cell)  # read under the lock: now nobody writes it
            if told.get("finished"):
                return None
            if not told:
                for path in self._entries(cell):  # killed while it wrote its first file
                    if left_over(path.name):
                        path.unlink()
            words = [*command, *(["--resume"] if told else [])]
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def last_lines(self, cell: Cell, count: int = 12) -> list[str]:
        text = self.log(cell).read_text(encoding="utf-8", errors="replace")
        lines = [line.rpartition("\r")[2].rstrip() for line in text.replace("\r\n", "\n").split("\n")]  # a bar's last
        return [line for line in lines if line][-count:]

    # what comes out

    def write(self, methods: Sequence[str]) -> None:
        """CSV, table and figure of all cells that are finished; methods in this order, then others."""
        told = {cell: found for cell in self.found() if (found := self.told(cell))["finished"]}
        if not told:
            return
        order = list(dict.fromkeys([*methods, *sorted(cell.method for cell in told)]))
        cells = sorted(told, key=lambda cell: (order.index(cell.method), cell.sparsity, cell.seed))
        rows = [row(cell, told[cell]) for cell in cells]
        first = told[cells[0]]
        title = f"{first['settings']['model']} on {first['data']['title']}"
        write_atomic(self.directory / CSV, as_csv(rows).encode())
        write_atomic(self.directory / TABLE, as_table(rows, title).encode())
        for kind in ("svg", "png"):
            write_atomic(self.directory / f"{metric_of(rows)}.{kind}", as_figure(rows, title, kind))


def row(cell: Cell, told: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the CSV. `seconds` leave the dense twin out, which one cell trains and the others find in the cache."""
    found, mask, sizes = told["results"], told["mask"], told["bytes"]
    metrics = {
        f"{stage}_{metric}": found.get(stage, {}).get(metric, "")
        for metric in ("accuracy", "top_5_accuracy", "mean_iou")
        for stage in ("dense", "pruned", "ticket")
    }
    values = {
        "model": told["settings"]["model"], "data": told["settings"]["data"], "method": cell.method,
        "sparsity": cell.sparsity, "true_sparsity": mask["sparsity"], "seed": cell.seed, **metrics,
        "kept": mask["kept"], "total": mask["total"], "mask_digest": mask["digest"],
        "bytes": sizes.get("ticket.safetensors", sizes.get("model.safetensors")),
        "seconds": round(sum(value for name, value in told["seconds"].items() if name != "dense"), 2),
    }  # fmt: skip
    return {name: values[name] for name in COLUMNS}


def as_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def metric_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """By which the methods are compared: what the cells' tickets have."""
    return next(metric for metric in TITLES if rows[0][f"ticket_{metric}"] != "")


def by_seed(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[float, list[float]]]:
    """{method: {sparsity: the metric in %, one a seed}}"""
    found: dict[str, dict[float, list[float]]] = {}
    key = f"ticket_{metric_of(rows)}"
    for line in rows:
        found.setdefault(line["method"], {}).setdefault(line["sparsity"], []).append(100 * line[key])
    return found


def dense_by_seed(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Of the dense twin, in %: one a seed, whichever cells have it."""
    key = f"dense_{metric_of(rows)}"
    return list({line["seed"]: 100 * line[key] for line in rows if line[key] != ""}.values())


def spread(values: Sequence[float]) -> float:
    """The deviation of a sample, √(Σ (a - mean)² / (n - 1)); 0 where one value tells nothing of it."""
    return stdev(values) if len(values) > 1 else 0.0


def as_table(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """mean ± deviation over seeds, methods x sparsities."""
    found, dense = by_seed(rows), dense_by_seed(rows)
    sparsities = sorted({line["sparsity"] for line in rows})
    most = len({line["seed"] for line in rows})
    best = {s: max(mean(at[s]) for at in found.values() if s in at) for s in sparsities}

    def shown(values: Sequence[float]) -> str:
        return f"{mean(values):.2f} ± {spread(values):.2f}" if len(values) > 1 else f"{mean(values):.2f}"

    def entry(values: Sequence[float] | None, top: float) -> str:
        if not values:
            return ""
        text = f"**{shown(values)}**" if mean(values) == top else shown(values)
        return text if len(values) == most else f"{text} (n={len(values)})"

    seeds = f"mean ± sample deviation over {most} seeds" if most > 1 else "1 seed"
    fewer = any(len(values) < most for at in found.values() for values in at.values())
    lines = [
        f"# {title}",
        "",
        f"{_capital(TITLES[metric_of(rows)])} on the test set in %, {seeds}, by the part of the weights that was "
        f"removed; the best of each column in bold{'; (n=…) where fewer seeds are done' if fewer else ''}.",
        "",
        f"| {f'dense: {shown(dense)}' if dense else 'method'} | {' | '.join(map(percent, sparsities))} |",
        f"|---{'|---' * len(sparsities)}|",
    ]
    lines += [
        f"| {method} | {' | '.join(entry(at.get(s), best[s]) for s in sparsities)} |" for method, at in found.items()
    ]
    return "\n".join(lines) + "\n"


def as_figure(rows: Sequence[Mapping[str, Any]], title: str, kind: str) -> bytes:
    """The metric against density on a log scale, on which the paper's nine sparsities lie evenly, dense on the left."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    found, dense = by_seed(rows), dense_by_seed(rows)
    shown = sorted({line["sparsity"] for line in rows})
    with matplotlib.rc_context({"svg.hashsalt": "hf_px", "font.size": 10, "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.add_subplot()
        for i, (method, at) in enumerate(found.items()):
            colour, marker = _COLOURS[i % len(_COLOURS)], _MARKERS[i % len(_MARKERS)]
            sparsities = sorted(at)
            x = [1 - s for s in sparsities]
            if len(shown) == 1:  # side by side, not on top of each other
                x = [x[0] * 1.02 ** ((len(found) - 1) / 2 - i)]
            middle, width = [mean(at[s]) for s in sparsities], [spread(at[s]) for s in sparsities]
            low, high = [m - w for m, w in zip(middle, width)], [m + w for m, w in zip(middle, width)]
            line = "-" if i < len(_COLOURS) else "-."
            axes.plot(x, middle, line, color=colour, marker=marker, markersize=5, linewidth=1.5, label=method)
            axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
            if len(x) == 1:  # a single point has no area to shade
                axes.errorbar(x, middle, width, color=colour, capsize=3, linewidth=1)
        if dense:
            axes.axhline(mean(dense), color="0.35", linestyle="--", linewidth=1.2, label="dense")
            axes.axhspan(mean(dense) - spread(dense), mean(dense) + spread(dense), color="0.35", alpha=0.1, linewidth=0)
        axes.set_xscale("log")
        axes.invert_xaxis()
        ticks = _apart(shown)
        axes.set_xticks([1 - s for s in ticks], [percent(s) for s in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("weights removed" + (", on a log scale of those left" if len(shown) > 1 else ""))
        axes.set_ylabel(f"test {TITLES[metric_of(rows)]}, %")
        most = len({line["seed"] for line in rows})
        axes.set_title(f"{title}{f', {most} seeds: mean ± deviation' if most > 1 else ''}", fontsize=10, loc="left")
        axes.grid(True, color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right upper", frameon=False)
        file = io.BytesIO()
        # no date: the same results give the same bytes
        figure.savefig(file, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
    return file.getvalue()


def check_figures() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("the figure needs matplotlib, which is not here; pip install 'hf-px[recipes]'")


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def percent(sparsity: float) -> str:
    return f"{100 * sparsity:.6g} %"


def _apart(sparsities: Sequence[float]) -> list[float]:
    """Those whose labels do not run into each other: a tenth of the axis between them."""
    places = [-math.log(1 - s) for s in sparsities]
    kept: list[int] = []
    for i in reversed(range(len(places))):
        if not kept or places[kept[-1]] - places[i] > 0.1 * (places[-1] - places[0]):
            kept.append(i)
    return [sparsities[i] for i in reversed(kept)]


def _lock(file: Any) -> bool:
    """Hold the file until it, and every copy of it that a child process has, is closed; False if another one does."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
