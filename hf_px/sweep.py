"""A sweep's directory: cells/<method>-<value>-s<seed>, a run each; of those finished, CSV, table and figure.

The value is a sparsity, a number of rounds (px-T100-s0) or of examples per class (px-D10-s0): the sweep's axis.

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

from .hub.ticket import Ticket
from .mask import Mask
from .rounds import scorers
from .runs import NAME, check_output
from .store import left_over, write_atomic

CSV, TABLE = "results.csv", "table.md"
# the metric that a table and a figure show, by which the figure is named: the first that the cells have
TITLES = {"accuracy": "accuracy", "mean_iou": "mean IoU"}
_OWN = {"cells", "logs", CSV, TABLE, *(f"{metric}.{kind}" for metric in TITLES for kind in ("svg", "png"))}
NO_PATH = "no path from input to output is left"  # how a cell's log says that its method has emptied a layer
COLUMNS = (
    "model", "data", "method", "sparsity", "true_sparsity", "seed", "dense_accuracy", "pruned_accuracy",
    "ticket_accuracy", "dense_top_5_accuracy", "pruned_top_5_accuracy", "ticket_top_5_accuracy", "dense_mean_iou",
    "pruned_mean_iou", "ticket_mean_iou", "kept", "total",
    "mask_digest", "bytes", "seconds", "rounds", "per_class", "pruning_seconds", "overlap", "outcome",
)  # fmt: skip
# Okabe and Ito's, which colour-blind readers tell apart, without their yellow: too pale for a line on white
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
_LEAST_SECONDS = 0.01  # results.json has two decimals, and a log axis no zero
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h")


@dataclass(frozen=True)
class Axis:
    """What the columns of the table are: the setting that differs between them, and how it is said."""

    key: str  # of the settings, and of the CSV
    mark: str  # before the value, in the name of a cell
    head: str  # of a column, around the value
    said: str  # in the table
    label: str  # in the figure
    ablation: bool = True  # a paper's table: methods in two groups, how far masks agree, collapse is an outcome
    timed: bool = False  # with the seconds of the pruning

    def column(self, value: float) -> str:
        return percent(value) if self.key == "sparsity" else self.head.format(value)

    def place(self, value: float) -> float:
        """On the figure's log axis."""
        return 1 - value if self.key == "sparsity" else value

    @property
    def of_a_cell(self) -> set[str]:
        """Settings in which the cells of one table may differ; a method has rounds of its own."""
        return {"scorer", "seed", "rounds", self.key}


SPARSITY = Axis("sparsity", "", "", "by the part of the weights that was removed", "weights removed", ablation=False)
ROUNDS = Axis("rounds", "T", "T = {}", "by the number of pruning rounds T", "pruning rounds T", timed=True)
PER_CLASS = Axis(
    "per_class", "D", "D = {}", "by the number D of examples per class to prune by", "examples per class |D|"
)


@dataclass(frozen=True)
class Cell:
    method: str
    value: float  # on the axis
    seed: int
    axis: Axis = SPARSITY

    @property
    def name(self) -> str:
        return f"{self.method}-{self.axis.mark}{self.value!r}-s{self.seed}"

    @property
    def flags(self) -> list[str]:
        """What makes it this cell, for its recipe."""
        return ["--scorer", self.method, f"--{self.axis.key}", repr(self.value), "--seed", str(self.seed)]

    @property
    def kind(self) -> str:
        """The recipe that runs it."""
        return "imp" if self.method == "imp" else "prune_finetune"


class Sweep:
    def __init__(self, directory: Path, axis: Axis = SPARSITY) -> None:
        self.directory, self.axis = directory, axis
        self._overlaps: dict[tuple[str, str], float] = {}

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
            now = asked.get(cell) or {
                key: value for key, value in asked[cells[0]].items() if key not in self.axis.of_a_cell
            }
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
            cell = Cell(told["scorer"], told[self.axis.key], told["seed"], self.axis)
            if cell.name != path.parent.name:
                raise ValueError(
                    f"{path.parent} holds a run that would be {cell.name} here; was it moved there, or is this the "
                    "directory of another table? Name another --output_dir"
                )
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
        if self.collapsed(cell):
            return f"collapsed: {NO_PATH}"
        if self.log(cell).is_file():
            with open(self.log(cell), "ab") as log:
                if not _lock(log):
                    return "running"
        return "unfinished" if told else "to do"

    def collapsed(self, cell: Cell) -> bool:
        """Its run ended since the mask left no path. The same run would do it again: for an ablation, that is known."""
        if not self.axis.ablation or not self.log(cell).is_file() or not self.told(cell) or self.finished(cell):
            return False
        return any(NO_PATH in line for line in self.last_lines(cell, 4))

    def done(self, cell: Cell) -> bool:
        """Nothing is left to run."""
        return self.finished(cell) or self.collapsed(cell)

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
            if self.axis.timed and "pruning" not in told.get("seconds", {}):
                # killed while it pruned: from the first round again, or the time would be that of the last ones only
                (self.path(cell) / "checkpoints" / "mask.safetensors").unlink(missing_ok=True)
            words = [*command, *(["--resume"] if told else [])]
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def last_lines(self, cell: Cell, count: int = 12) -> list[str]:
        text = self.log(cell).read_text(encoding="utf-8", errors="replace")
        lines = [line.rpartition("\r")[2].rstrip() for line in text.replace("\r\n", "\n").split("\n")]  # a bar's last
        return [line for line in lines if line][-count:]

    # what comes out

    def write(self, methods: Sequence[str]) -> None:
        """CSV, table and figure of all cells that are finished; methods in this order, then others."""
        told = {cell: self.told(cell) for cell in self.found() if self.done(cell)}
        if not any(found["finished"] for found in told.values()):
            return
        order = list(dict.fromkeys([*methods, *sorted(cell.method for cell in told)]))
        cells = sorted(told, key=lambda cell: (order.index(cell.method), cell.value, cell.seed))
        overlaps = self.overlaps({cell: found for cell, found in told.items() if found["finished"]})
        rows = [row(cell, told[cell]) | {"overlap": overlaps.get(cell, "")} for cell in cells]
        first = told[cells[0]]
        title = f"{first['settings']['model']} on {first['data']['title']}"
        if self.axis.ablation:
            title += f", sparsity {percent(first['settings']['sparsity'])}"
        where = f"{first['settings']['device']}, {_many(first['settings']['processes'], 'process', 'processes')}"
        write_atomic(self.directory / CSV, as_csv(rows).encode())
        write_atomic(self.directory / TABLE, as_table(rows, title, self.axis, where).encode())
        for kind in ("svg", "png"):
            write_atomic(self.directory / f"{metric_of(rows)}.{kind}", as_figure(rows, title, kind, self.axis))

    def overlaps(self, told: Mapping[Cell, Mapping[str, Any]]) -> dict[Cell, float]:
        """Of each mask with that of the same method and seed at the largest value: |A ∩ B| / |A ∪ B|."""
        found: dict[Cell, float] = {}
        for cell in told if self.axis.ablation else ():
            kin = [other for other in told if (other.method, other.seed) == (cell.method, cell.seed)]
            last = max(kin, key=lambda other: other.value)
            key = told[cell]["mask"]["digest"], told[last]["mask"]["digest"]
            if key[0] == key[1]:
                self._overlaps[key] = 1.0
            if key not in self._overlaps:
                a, b = (self._mask(each) for each in (cell, last))
                if a is None or b is None:
                    continue
                self._overlaps[key] = jaccard(a, b)
            found[cell] = self._overlaps[key]
        return found

    def _mask(self, cell: Cell) -> Mask | None:
        """None if the ticket was thrown away to save room: its results are still good."""
        held = any(self.path(cell).glob("*.safetensors"))
        return Ticket.from_pretrained(self.path(cell)).mask if held else None


def jaccard(a: Mask, b: Mask) -> float:
    both = (a & b).kept
    return both / max(1, a.kept + b.kept - both)


def row(cell: Cell, told: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the CSV. `seconds` leave the dense twin out, which one cell trains and the others find in the cache."""
    settings, found = told["settings"], told["results"]
    mask, sizes = told.get("mask", {}), told.get("bytes", {})
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
        "seconds": round(sum(value for name, value in told["seconds"].items() if name != "dense"), 2),
        "rounds": settings.get("rounds", ""), "per_class": settings.get("per_class", ""),
        "pruning_seconds": told["seconds"].get("pruning", ""), "overlap": "",
        "outcome": "finished" if told["finished"] else "collapsed",
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
    return next(metric for metric in TITLES if any(line.get(f"ticket_{metric}", "") != "" for line in rows))


def by_seed(rows: Sequence[Mapping[str, Any]], axis: Axis = SPARSITY) -> dict[str, dict[float, list[float]]]:
    """{method: {value: the metric in %, one a seed}}; of a method that has collapsed, none."""
    found = column(rows, f"ticket_{metric_of(rows)}", axis)
    return {method: {v: [100 * each for each in values] for v, values in at.items()} for method, at in found.items()}


def column(rows: Sequence[Mapping[str, Any]], key: str, axis: Axis) -> dict[str, dict[float, list[float]]]:
    """{method: {value: what stands in that column of the CSV, one a seed}}"""
    found: dict[str, dict[float, list[float]]] = {line["method"]: {} for line in rows}
    for line in rows:
        if line.get(key, "") != "":
            found[line["method"]].setdefault(line[axis.key], []).append(line[key])
    return found


def single_shot(method: str) -> bool:
    """It scores once, in its authors' words; imp is none, and no scorer."""
    record = scorers.get(method)
    return record is not None and record.rounds == 1


def dense_by_seed(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Of the dense twin, in %: one a seed, whichever cells have it."""
    key = f"dense_{metric_of(rows)}"
    return list({line["seed"]: 100 * line[key] for line in rows if line[key] != ""}.values())


def spread(values: Sequence[float]) -> float:
    """The deviation of a sample, √(Σ (a - mean)² / (n - 1)); 0 where one value tells nothing of it."""
    return stdev(values) if len(values) > 1 else 0.0


def as_table(rows: Sequence[Mapping[str, Any]], title: str, axis: Axis = SPARSITY, where: str = "") -> str:
    """mean ± deviation over seeds, methods x values; with the seconds of pruning beside it, if the axis is timed."""
    found, dense = by_seed(rows, axis), dense_by_seed(rows)
    values = sorted({line[axis.key] for line in rows})
    most = len({line["seed"] for line in rows})
    best = {v: max((mean(at[v]) for at in found.values() if v in at), default=math.nan) for v in values}
    lost = column([line for line in rows if line.get("outcome") == "collapsed"], "outcome", axis)
    taken = column(rows, "pruning_seconds", axis) if axis.timed else {}

    def shown(values: Sequence[float]) -> str:
        return f"{mean(values):.2f} ± {spread(values):.2f}" if len(values) > 1 else f"{mean(values):.2f}"

    def entry(method: str, value: float) -> str:
        if axis is ROUNDS and single_shot(method) and value != 1:
            return "–"
        got, gone = found[method].get(value), len(lost.get(method, {}).get(value, ()))
        if not got:
            return "collapsed" if gone else ""
        text = f"**{shown(got)}**" if mean(got) == best[value] else shown(got)
        fewer = f"n={len(got)}{f', {gone} collapsed' if gone else ''}"
        return text if len(got) == most else f"{text} ({fewer})"

    def seconds(method: str, value: float) -> str:
        if axis is ROUNDS and single_shot(method) and value != 1:
            return "–"
        return f"{mean(got):.2f}" if (got := taken[method].get(value)) else ""

    def line_of(method: str) -> str:
        entries = [[entry(method, v), *([seconds(method, v)] if axis.timed else [])] for v in values]
        return f"| {' | '.join([method, *(text for pair in entries for text in pair)])} |"

    seeds = f"mean ± sample deviation over {most} seeds" if most > 1 else "1 seed"
    fewer = any(len(values) < most for at in found.values() for values in at.values())
    heads = [text for v in values for text in [axis.column(v), *(["s"] if axis.timed else [])]]
    lines = [
        f"# {title}",
        "",
        f"{_capital(TITLES[metric_of(rows)])} on the test set in %, {seeds}, {axis.said}; the best of each column in "
        f"bold{'; (n=…) where fewer seeds are done' if fewer else ''}"
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


def _overlap_table(rows: Sequence[Mapping[str, Any]], axis: Axis, values: Sequence[float]) -> list[str]:
    """How far the value changes the mask; of methods that have more than one."""
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


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def percent(sparsity: float) -> str:
    return f"{100 * sparsity:.6g} %"


def _many(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def _apart(values: Sequence[float], axis: Axis) -> list[float]:
    """Those whose labels do not run into each other: a tenth of the axis between them."""
    places = [math.log(axis.place(v)) for v in values]
    kept: list[int] = []
    for i in reversed(range(len(places))):
        if not kept or abs(places[kept[-1]] - places[i]) > 0.1 * abs(places[-1] - places[0]):
            kept.append(i)
    return [values[i] for i in reversed(kept)]


def _lock(file: Any) -> bool:
    """Hold the file until it, and every copy of it that a child process has, is closed; False if another one does."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
