"""Directory of a sweep: one run per cell in cells/<method>-<value>-s<seed>; CSV, table and figure of the finished ones.

The value is that of the axis: a sparsity, a number of rounds (px-T100-s0) or of examples per class (px-D10-s0).

The log of a cell is also its lock: its processes hold a lock on the log file that they write to, and the kernel
releases it when the last of them ends. A sweep may be killed while its cell keeps running; two never run the same cell.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...analysis.overlap import overlap
from ...core.files import is_temporary, try_lock, write_atomic
from ...core.mask import Mask
from ...tickets.ticket import Ticket
from ..resume import read_local, resolved
from ..run_directory import RESULTS, check_output
from .cells import NO_PATH, SPARSITY, Cell, SweepAxis, percent_of
from .figure import as_figure
from .rows import TITLES, as_csv, metric_of, row
from .table import as_table

CSV, TABLE = "results.csv", "table.md"
# earlier versions wrote the figure as .png too
_OWN = {"cells", "logs", CSV, TABLE, *(f"{metric}.{kind}" for metric in TITLES for kind in ("svg", "png"))}


class Sweep:
    def __init__(self, directory: Path, axis: SweepAxis = SPARSITY) -> None:
        self.directory, self.axis = directory, axis
        self._overlaps: dict[tuple[str, str], float] = {}

    def path(self, cell: Cell) -> Path:
        return self.directory / "cells" / cell.name

    def log(self, cell: Cell) -> Path:
        return self.directory / "logs" / f"{cell.name}.log"

    # State

    def check(self, cells: Sequence[Cell], settings: Callable[[Cell], Mapping[str, Any]]) -> None:
        """Refuse, before any work, a directory with other files and cells that were run with other settings."""
        if self.directory.exists() and not self.directory.is_dir():
            raise ValueError(f"`output_dir` {self.directory} is a file; name a directory")
        names = sorted(path.name for path in self.directory.iterdir()) if self.directory.is_dir() else []
        for name in names:
            if name not in _OWN and not is_temporary(name):
                raise ValueError(f"`output_dir` {self.directory} holds {name}, which no sweep wrote; name another one")
        wanted = {cell: resolved(settings(cell)) for cell in cells}
        for cell in dict.fromkeys([*cells, *self.found()]):
            if all(is_temporary(path.name) for path in self._entries(cell)):
                continue
            check_output(self.path(cell), cell.recipe)
            was = read_local(self.path(cell)) or resolved(self.results(cell)["settings"])
            # a cell of an earlier sweep joins the same table: all settings but those of a cell must be the same
            now = wanted.get(cell) or {
                key: value for key, value in wanted[cells[0]].items() if key not in self.axis.varying_settings
            }
            for key, value in was.items():
                if now.get(key) is not None and json.loads(json.dumps(now[key])) != value:
                    raise ValueError(
                        f"{self.path(cell)} was run with other settings: {key} was {value!r}, now {now[key]!r}; name "
                        "another `output_dir`, or remove that cell"
                    )

    def found(self) -> list[Cell]:
        """Cells on disk. A sweep may grow, so there may be more than those of this command."""
        cells = []
        for path in sorted((self.directory / "cells").glob(f"*/{RESULTS}")):
            settings = json.loads(path.read_text(encoding="utf-8"))["settings"]
            cell = Cell(settings["scorer"], settings[self.axis.key], settings["seed"], self.axis)
            named = replace(cell, method=f"{cell.method}:{settings.get('norm')}")
            cell = named if path.parent.name == named.name else cell  # px:batch and px are the same run
            if cell.name != path.parent.name:
                raise ValueError(
                    f"{path.parent} holds a run that would be {cell.name} here; was it moved there, or is this the "
                    "directory of another table? Name another `output_dir`"
                )
            cells.append(cell)
        return cells

    def results(self, cell: Cell) -> dict[str, Any]:
        """results.json of a cell; empty before it has started."""
        path = self.path(cell) / RESULTS
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def finished(self, cell: Cell) -> bool:
        return bool(self.results(cell).get("finished"))

    def state(self, cell: Cell) -> str:
        results = self.results(cell)
        if results.get("finished"):
            metrics = results["results"]["ticket"]
            return "finished, " + ", ".join(f"{TITLES[key]} {metrics[key]:.2%}" for key in TITLES if key in metrics)
        if self.collapsed(cell):
            return f"collapsed: {NO_PATH}"
        if self.log(cell).is_file():
            with open(self.log(cell), "ab") as log:
                if not try_lock(log):
                    return "running"
        return "unfinished" if results else "to do"

    def collapsed(self, cell: Cell) -> bool:
        """True if the mask left no path. The same run would collapse again; in an ablation that is a result."""
        if not self.axis.ablation or not self.log(cell).is_file() or not self.results(cell) or self.finished(cell):
            return False
        return any(NO_PATH in line for line in self.last_lines(cell, 4))

    def done(self, cell: Cell) -> bool:
        """True if nothing is left to run."""
        return self.finished(cell) or self.collapsed(cell)

    def _entries(self, cell: Cell) -> list[Path]:
        return list(self.path(cell).iterdir()) if self.path(cell).is_dir() else []

    # Running

    def start(self, cell: Cell, command: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """Run the command, with --resume if the cell has started; None if another process runs or has finished it."""
        self.log(cell).parent.mkdir(parents=True, exist_ok=True)
        with open(self.log(cell), "ab") as log:
            if not try_lock(log):
                return None
            results = self.results(cell)  # read under the lock, so that nobody is writing it
            if results.get("finished"):
                return None
            if not results:
                for path in self._entries(cell):  # killed while it wrote its first file
                    if is_temporary(path.name):
                        path.unlink()
            if self.axis.timed and "pruning" not in results.get("seconds", {}):
                # killed while pruning: start at round 1 again, or the seconds would miss the rounds before the kill
                (self.path(cell) / "checkpoints" / "mask.safetensors").unlink(missing_ok=True)
            words = [*command, *(["--resume"] if results else [])]
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def last_lines(self, cell: Cell, count: int = 12) -> list[str]:
        text = self.log(cell).read_text(encoding="utf-8", errors="replace")
        lines = [
            line.rpartition("\r")[2].rstrip() for line in text.replace("\r\n", "\n").split("\n")
        ]  # the last state of a progress bar
        return [line for line in lines if line][-count:]

    # Output

    def write(self, methods: Sequence[str]) -> None:
        """Write CSV, table and figure of all finished cells; methods in the given order, then others."""
        done = {cell: self.results(cell) for cell in self.found() if self.done(cell)}
        if not any(results["finished"] for results in done.values()):
            return
        order = list(dict.fromkeys([*methods, *sorted(cell.method for cell in done)]))
        cells = sorted(done, key=lambda cell: (order.index(cell.method), cell.value, cell.seed))
        overlaps = self.overlaps({cell: results for cell, results in done.items() if results["finished"]})
        rows = [row(cell, done[cell]) | {"overlap": overlaps.get(cell, "")} for cell in cells]
        first = done[cells[0]]
        title = f"{first['settings']['model']} on {first['data']['title']}"
        if self.axis.ablation:
            title += f", sparsity {percent_of(first['settings']['sparsity'])}"
        processes = first["settings"]["processes"]
        where = f"{first['settings']['device']}, {processes} process{'es' * (processes > 1)}"
        write_atomic(self.directory / CSV, as_csv(rows).encode())
        write_atomic(self.directory / TABLE, as_table(rows, title, self.axis, where).encode())
        write_atomic(self.directory / f"{metric_of(rows)}.svg", as_figure(rows, title, self.axis).encode())

    def overlaps(self, results: Mapping[Cell, Mapping[str, Any]]) -> dict[Cell, float]:
        """|A ∩ B| / |A ∪ B| of each mask and that of the same method and seed at the largest value."""
        found: dict[Cell, float] = {}
        for cell in results if self.axis.ablation else ():
            comparable = [other for other in results if (other.method, other.seed) == (cell.method, cell.seed)]
            last = max(comparable, key=lambda other: other.value)
            key = results[cell]["mask"]["digest"], results[last]["mask"]["digest"]
            if key[0] == key[1]:
                self._overlaps[key] = 1.0
            if key not in self._overlaps:
                a, b = (self._mask(each) for each in (cell, last))
                if a is None or b is None:
                    continue
                self._overlaps[key] = overlap(a, b).all.jaccard
            found[cell] = self._overlaps[key]
        return found

    def _mask(self, cell: Cell) -> Mask | None:
        """None if the ticket was deleted to save space; its results are still valid."""
        held = any(self.path(cell).glob("*.safetensors"))
        return Ticket.from_pretrained(self.path(cell)).mask if held else None
