"""recipes/sweep.py: killed, run again, with a cell that fails; its CSV, table and figure. Most cells are forked."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.launching import (
    REPO,
    Server,
    at_work_in,
    cell_of,
    command,
    environment,
    exists,
    files,
    recipe_module,
    refused_before_work,
    results,
    run_here,
    small_digits,
    until,
)  # fmt: skip

from hf_px.prune_config import DEFAULT_SCORER
from hf_px.training.sweep import Cell, Sweep

RECIPE = REPO / "recipes" / "sweep.py"


GRID = [Cell(method, 0.8, seed) for seed in (0, 1) for method in ("magnitude", "imp")]


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return recipe_module(RECIPE)


class Place:
    """A directory to sweep in, with its own data and cache."""

    def __init__(self, folder: Path, recipe: ModuleType) -> None:
        self.folder, self.recipe, self.sweep = folder, recipe, Sweep(folder / "out")
        (folder / "small").mkdir()  # not "digits", which names the whole set
        small_digits(folder / "small", train=96)

    def words(self, *flags: Any, seeds: tuple[int, ...] = (0, 1), epochs: int = 2) -> list[str]:
        words = ["--methods", "magnitude", "imp", "--sparsities", 0.8, "--seeds", *seeds, "--output_dir", "out", *flags]
        words += ["--", "--data", "small", "--image_size", 8, "--epochs", epochs, "--batch_size", 32, "--lr", 0.05]
        return [*map(str, words), "--rewind", "lr", "--rounds", "1", "--checkpoint_steps", "1"]  # --rewind: imp's alone

    def run(self, *words: str) -> int:
        return run_here(self.recipe, self.folder, *words)


@pytest.fixture(scope="module")
def place(recipe: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("sweep"), recipe)


@pytest.fixture(scope="module")
def killed(place: Place, server: Server) -> Iterator[int]:
    """A sweep that was killed in its second cell, whose process still runs: it waits for the test."""
    begun = exists(place.sweep.path(GRID[1]) / "checkpoints", "ticket-*")

    def stopped() -> bool:
        if begun():
            os.kill(cell_of(place.folder), signal.SIGSTOP)  # or it would be done before we have looked
        return begun()

    printed = server.run(place.folder, *place.words(), recipe=RECIPE, kill=stopped)
    cell = cell_of(place.folder)
    assert begun(), printed[-3000:]
    yield cell
    _end(place, GRID[1], [cell])


def test_a_cell_that_outlives_its_sweep_is_left_alone(
    place: Place, killed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third, fourth = GRID
    assert place.run(*place.words("--dry_run")) == 0
    printed = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert printed[first.name].startswith("finished, accuracy ") and printed[second.name] == "running"
    assert printed[third.name] == printed[fourth.name] == "to do"
    assert place.sweep.start(second, ["false"]) is None  # never two processes on one cell

    rows = list(csv.DictReader((place.folder / "out" / "results.csv").open()))  # written when the first was done
    assert [(row["method"], row["seed"]) for row in rows] == [("magnitude", "0")]
    _end(place, second, [killed])  # now it is killed too
    assert place.sweep.state(second) == "unfinished"


@pytest.fixture(scope="module")
def failed(place: Place, server: Server, killed: int) -> tuple[dict[Path, tuple[int, int]], str]:
    """(files of the finished cell, what was printed) of a run in which 27 weights are too few for a path."""
    _end(place, GRID[1], [killed])
    before = _files(place, GRID[0])
    server.run(place.folder, *_magnitude(place.words(seeds=(1,)), "0.9999", "0.8"), recipe=RECIPE, code=1)
    return before, server.errors(place.folder)


def test_a_failing_cell_is_told_and_the_others_go_on(place: Place, failed: tuple[Any, str]) -> None:
    _, printed = failed
    assert "magnitude-0.9999-s1 failed" in printed and "no path from input to output is left" in printed
    assert "1 of 2 cells failed" in printed and "Traceback" not in printed
    assert place.sweep.finished(GRID[2]) and not place.sweep.finished(Cell("magnitude", 0.9999, 1))


@pytest.fixture(scope="module")
def done(place: Place, server: Server, failed: tuple[dict[Path, tuple[int, int]], str]) -> dict[Path, tuple[int, int]]:
    """The first command again, to the end; files of the cells that had been finished before."""
    before = failed[0] | _files(place, GRID[2])
    server.run(place.folder, *place.words(), recipe=RECIPE)
    return before


def test_what_was_begun_goes_on_and_what_was_finished_is_left_alone(place: Place, done: dict[Path, Any]) -> None:
    assert all(place.sweep.finished(cell) for cell in GRID)
    assert done == _files(place, GRID[0]) | _files(place, GRID[2])
    assert re.search(r"ticket: continues after step \d+ of 6", place.sweep.log(GRID[1]).read_text())
    assert "dense twin: cached in" in place.sweep.log(GRID[3]).read_text()  # the cells of a seed share it
    assert results(place.sweep.path(GRID[1]))["settings"]["rewind"] == "lr"
    now = files(place.folder / "out" / "cells")
    assert place.run(*place.words()) == 0  # nothing left to do
    assert now == files(place.folder / "out" / "cells")


def test_the_csv_holds_what_each_run_has_told(place: Place, done: dict[Path, Any]) -> None:
    rows = {(r["method"], int(r["seed"])): r for r in csv.DictReader((place.folder / "out" / "results.csv").open())}
    assert set(rows) == {(cell.method, cell.seed) for cell in GRID}
    for cell in GRID:
        recorded, row = results(place.sweep.path(cell)), rows[cell.method, cell.seed]
        for stage in ("dense", "pruned", "ticket"):
            assert float(row[f"{stage}_accuracy"]) == recorded["results"][stage]["accuracy"]
            assert float(row[f"{stage}_top_5_accuracy"]) == recorded["results"][stage]["top_5_accuracy"]
        assert (row["model"], row["data"], float(row["sparsity"])) == ("resnet20", "small", 0.8)
        assert float(row["true_sparsity"]) == 1 - int(row["kept"]) / int(row["total"])
        assert int(row["kept"]) == round(0.2 * int(row["total"])) and row["mask_digest"] == recorded["mask"]["digest"]
        assert int(row["bytes"]) == (place.sweep.path(cell) / "ticket.safetensors").stat().st_size
        assert float(row["seconds"]) > 0


def test_the_table_is_mean_and_deviation_of_the_csv(place: Place, done: dict[Path, Any]) -> None:
    text = (place.folder / "out" / "table.md").read_text()
    recorded = {cell: 100 * results(place.sweep.path(cell))["results"]["ticket"]["accuracy"] for cell in GRID}
    for method in ("magnitude", "imp"):
        values = [value for cell, value in recorded.items() if cell.method == method]
        assert f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}" in _line(text, method)
    svg = (place.folder / "out" / "accuracy.svg").read_text()
    assert ">magnitude<" in svg and ">imp<" in svg and ">80 %<" in svg


def test_other_settings_are_an_error_before_any_work(place: Place, done: dict[Path, Any]) -> None:
    before = files(place.folder / "out")
    with pytest.raises(ValueError, match=r"magnitude-0\.8-s0 was run with other settings: epochs was 2, now 3"):
        place.run(*place.words(epochs=3))
    assert before == files(place.folder / "out")


# 13 s; a recipe is launched by accelerate in tests/recipes/test_hub_recipe.py too
@pytest.mark.slow
def test_launched_as_a_user_does(recipe: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By accelerate, whose exit code says that the cell has failed; and the last words are the recipe's."""
    place = Place(tmp_path, recipe)
    assert place.run(*_magnitude(place.words(seeds=(0,)), "0.9999")) == 1
    printed = capsys.readouterr().err
    assert "magnitude-0.9999-s0 failed with exit code 1" in printed and "1 of 1 cells failed" in printed
    assert printed.index("prune_finetune: error: no path from input to output is left") < printed.index("1 of 1")
    assert "Traceback" not in printed


# what forked cells do and leave, and the lock they keep, is the same, and tested above; here a launcher stands between
@pytest.mark.slow
def test_launched_as_a_user_does_and_killed(recipe: ModuleType, tmp_path: Path) -> None:
    place, cell = Place(tmp_path, recipe), GRID[1]
    words = place.words(seeds=(0,))
    words.remove("magnitude")
    begun = exists(place.sweep.path(cell) / "checkpoints", "ticket-*")
    with open(tmp_path / "sweep.log", "wb") as log:
        run = subprocess.Popen(
            command(*words, recipe=RECIPE), cwd=tmp_path, env=environment(tmp_path), stdout=log, stderr=log
        )
    try:
        until(lambda: begun() or run.poll() is not None)
        for pid in (left := [pid for pid in at_work_in(tmp_path) if pid != run.pid]):
            os.kill(pid, signal.SIGSTOP)
    finally:
        run.kill()
        run.wait()
    assert begun() and len(left) == 2, (tmp_path / "sweep.log").read_text()[-3000:]  # accelerate's and the recipe's
    assert place.sweep.state(cell) == "running" and place.sweep.start(cell, ["false"]) is None
    os.kill(left[0], signal.SIGKILL)
    until(lambda: at_work_in(tmp_path) == left[1:])
    assert place.sweep.state(cell) == "running"  # as long as one of them lives
    _end(place, cell, left[1:])
    assert place.run(*words) == 0 and place.sweep.finished(cell)
    assert re.search(r"ticket: continues after step \d+ of 6", place.sweep.log(cell).read_text())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--methods", "pxx"], "did you mean px"),
        (["--sparsities", "98.2"], "did you mean 0.982?"),
        (["--sparsities", "1"], "--sparsities 1 is outside [0, 1)"),
        (["--methods", "px:foo"], "--methods px:foo: norm foo must be one of batch"),
        (["--seeds"], "--seeds: give at least one"),
        (["--seeds", "-1"], "--seeds -1 is too small"),
        (["--processes", "0"], "--processes 0 is too small"),
        (["--", "--seed", "3"], "use --seeds"),
        (["--", "--lr", "-1"], "--lr -1 must be positive"),
        (["--", "--model", "resnet21"], "resnet20"),
        (["--methods", "imp", "--", "--dense", "skip"], "the first round of IMP trains the dense model"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: No such file"),
    ],
)
def test_bad_input(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], complaint: str
) -> None:
    refused_before_work(recipe, ["sweep.py", "--output_dir", "out", *words], complaint, tmp_path, monkeypatch)


def test_a_flag_that_no_recipe_here_knows(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sweep.py", "--methods", "px", "--", "--rewind", "lr"])  # imp's, and no imp here
    with pytest.raises(SystemExit):
        recipe.main()
    assert "unrecognized arguments: --rewind" in capsys.readouterr().err


def test_a_directory_with_other_files_is_refused(recipe: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"holds thesis\.tex, which no sweep wrote"):
        Sweep(tmp_path).check([], lambda cell: {})


def _line(table: str, method: str) -> str:
    return next(line for line in table.splitlines() if line.startswith(f"| {method} |"))


def _magnitude(words: list[str], *sparsities: str) -> list[str]:
    """The same sweep, of this method alone and at these sparsities."""
    where = words.index("--seeds")
    words = ["--methods", "magnitude", "--sparsities", *sparsities, *words[where:]]
    return [word for word in words if word not in ("--rewind", "lr")]


def _files(place: Place, cell: Cell) -> dict[Path, tuple[int, int]]:
    """A cell's, and its log: a run of what is finished says so there, though it changes nothing else."""
    log = place.sweep.log(cell)
    return files(place.sweep.path(cell)) | {log: files(log.parent)[log]}


def _end(place: Place, cell: Cell, processes: list[int]) -> None:
    for pid in {*processes} & {*at_work_in(place.folder)}:  # also where the lock is lost: a test must leave none behind
        os.kill(pid, signal.SIGKILL)
    until(lambda: place.sweep.state(cell) != "running")  # a process that dies has no name before it closes its files


def test_without_methods_it_is_the_configs(recipe: ModuleType) -> None:
    assert recipe.configured_method(str(REPO / "recipes" / "configs" / "cifar10-resnet20.yaml")) == "px"
    assert recipe.configured_method(None) == DEFAULT_SCORER
