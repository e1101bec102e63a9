"""A sweep's directory: cells/<method>-<value>-s<seed>, a run each; of those finished, CSV, table and figure.

The value is a sparsity, a number of rounds (px-T100-s0) or of examples per class (px-D10-s0): the sweep's axis.

A cell's log is its lock: whoever runs it holds `flock` on the file that all its processes write to, and the kernel
lets go of it when the last of them is gone. A sweep may die while its cell lives on, and never do two run one cell.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...analysis import overlap
from ...core.files import left_over, write_atomic
from ...core.mask import Mask
from ...tickets.ticket import Ticket
from ..local_settings import read_local, resolved
from ..run_directory import NAME, check_output
from .cells import NO_PATH, SPARSITY, Axis, Cell, percent
from .figure import as_figure
from .rows import TITLES, as_csv, metric_of, row
from .table import as_table

CSV, TABLE = "results.csv", "table.md"
_OWN = {"cells", "logs", CSV, TABLE, *(f"{metric}.{kind}" for metric in TITLES for kind in ("svg", "png"))}


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
        asked = {cell: resolved(settings(cell)) for cell in cells}
        for cell in dict.fromkeys([*cells, *self.found()]):
            if all(left_over(path.name) for path in self._entries(cell)):
                continue
            check_output(self.path(cell), cell.kind)
            was = read_local(self.path(cell)) or resolved(self.told(cell)["settings"])
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
            named = replace(cell, method=f"{cell.method}:{told.get('norm')}")
            cell = named if path.parent.name == named.name else cell  # px:batch was asked for, or px, which means it
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
                self._overlaps[key] = overlap(a, b).all.jaccard
            found[cell] = self._overlaps[key]
        return found

    def _mask(self, cell: Cell) -> Mask | None:
        """None if the ticket was thrown away to save room: its results are still good."""
        held = any(self.path(cell).glob("*.safetensors"))
        return Ticket.from_pretrained(self.path(cell)).mask if held else None


def _many(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def _lock(file: Any) -> bool:
    """Hold the file until it, and every copy of it that a child process has, is closed; False if another one does."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
