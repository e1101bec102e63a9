"""recipes/ablate.py, launched as a user does: killed, run again, with a method that collapses; its CSV and table."""

from __future__ import annotations

import csv
import os
import re
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support.launching import (
    REPO,
    Server,
    cell_of,
    exists,
    files,
    recipe_module,
    refusal,
    refused_before_work,
    results,
    run_here,
    small_digits,
    until,
)  # fmt: skip

from hf_px import Mask
from hf_px.tickets.mask_file import save_mask
from hf_px.training.sweep import PER_CLASS, ROUNDS, Cell, Sweep, single_shot
from hf_px.training.sweep.runner import cell_settings

RECIPE = REPO / "recipes" / "ablate.py"


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return recipe_module(RECIPE)


class Place:
    """A directory to ablate in, with its own data and cache."""

    def __init__(self, folder: Path, recipe: ModuleType) -> None:
        self.folder, self.recipe, self.out = folder, recipe, folder / "out"
        (folder / "small").mkdir()
        small_digits(folder / "small", train=128, test=40)  # ten of each class, to prune by

    def words(self, table: str, *flags: Any, values: tuple[int, ...], methods: tuple[str, ...]) -> list[str]:
        words = [table, "--methods", *methods, "--values", *values, "--output_dir", "out", *flags]
        words += ["--", "--data", "small", "--image_size", 8, "--epochs", 1, "--batch_size", 32, "--dense", "skip"]
        return [*map(str, words), "--checkpoint_steps", "1"]

    def run(self, *words: str) -> int:
        return run_here(self.recipe, self.folder, *words)

    def table(self) -> dict[str, list[str]]:
        """{first column: the others} of the first table of table.md."""
        text = (self.out / "table.md").read_text()
        return _rows(text)

    def csv(self) -> list[dict[str, str]]:
        with (self.out / "results.csv").open() as file:
            return list(csv.DictReader(file))


# rounds: magnitude has one, synflow collapses in one


GRID = [Cell("magnitude", 1, 0, ROUNDS), Cell("synflow", 1, 0, ROUNDS), Cell("synflow", 3, 0, ROUNDS)]


@pytest.fixture(scope="module")
def place(recipe: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("ablate"), recipe)


@pytest.fixture(scope="module")
def words(place: Place) -> list[str]:
    return place.words("rounds", values=(1, 3), methods=("magnitude", "synflow"))


@pytest.fixture(scope="module")
def killed(place: Place, server: Server, words: list[str]) -> dict[Path, tuple[int, int]]:
    """Killed, with what it had started, in its last cell; the files of the finished one."""
    sweep = Sweep(place.out, ROUNDS)
    server.run(
        place.folder, *words, recipe=RECIPE, kill=exists(sweep.path(GRID[2]) / "checkpoints", "mask.safetensors")
    )
    os.kill(cell_of(place.folder), signal.SIGKILL)
    until(lambda: sweep.state(GRID[2]) != "running")
    return files(sweep.path(GRID[0]))


def test_killed_in_the_midst_what_was_done_is_told(
    place: Place, words: list[str], killed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    where = words.index("--")
    assert place.run(*words[:where], "--dry_run", *words[where:]) == 0
    printed = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert list(printed) == [cell.name for cell in GRID]  # magnitude at T = 3 is not among them
    assert printed["magnitude-T1-s0"].startswith("finished, accuracy ")
    assert printed["synflow-T1-s0"].startswith("collapsed: no path") and printed["synflow-T3-s0"] == "unfinished"
    assert [(row["method"], row["rounds"]) for row in place.csv()] == [("magnitude", "1"), ("synflow", "1")]


@pytest.fixture(scope="module")
def done(
    place: Place, server: Server, words: list[str], killed: dict[Path, tuple[int, int]]
) -> dict[Path, tuple[int, int]]:
    server.run(place.folder, *words, recipe=RECIPE)  # a collapse is no failure
    return killed


def test_run_again_it_leaves_alone_what_was_finished(place: Place, words: list[str], done: dict[Path, Any]) -> None:
    sweep = Sweep(place.out, ROUNDS)
    assert done == files(sweep.path(GRID[0]))
    assert sweep.finished(GRID[2]) and all(sweep.done(cell) for cell in GRID)
    collapsed = sweep.log(GRID[1]).read_text()
    assert collapsed.count("no path from input to output is left") == 1  # it was not tried twice
    now = files(place.out / "cells")
    assert place.run(*words) == 0
    assert now == files(place.out / "cells")


def test_a_pruning_that_was_cut_starts_again(place: Place, done: Any) -> None:
    """Or its seconds would be those of the last rounds alone; one that had come to its end is not done again."""
    assert not re.search(r"pruning: continues after round [12] of 3", Sweep(place.out, ROUNDS).log(GRID[2]).read_text())


def test_csv_and_table_hold_what_the_cells_have_told(place: Place, done: Any) -> None:
    sweep = Sweep(place.out, ROUNDS)
    recorded = {cell: results(sweep.path(cell)) for cell in (GRID[0], GRID[2])}
    rows = {(row["method"], int(row["rounds"])): row for row in place.csv()}
    assert set(rows) == {("magnitude", 1), ("synflow", 1), ("synflow", 3)}
    for cell, found in recorded.items():
        row = rows[cell.method, int(cell.value)]
        assert float(row["ticket_accuracy"]) == found["results"]["ticket"]["accuracy"]
        assert float(row["pruning_seconds"]) == found["seconds"]["pruning"]
        assert (row["outcome"], row["sparsity"], float(row["overlap"])) == ("finished", "0.982", 1.0)
        assert found["settings"]["rounds"] == cell.value and found["settings"]["sparsity"] == 0.982
    lost = rows["synflow", 1]
    assert (lost["outcome"], lost["ticket_accuracy"], lost["kept"]) == ("collapsed", "", "")

    table = place.table()
    accuracy = {c.method: f"{100 * found['results']['ticket']['accuracy']:.2f}" for c, found in recorded.items()}
    seconds = {c.method: f"{found['seconds']['pruning']:.2f}" for c, found in recorded.items()}
    assert table["method"] == ["T = 1", "s", "T = 3", "s"]
    assert table["magnitude"] == [f"**{accuracy['magnitude']}**", seconds["magnitude"], "–", "–"]
    assert table["synflow"] == ["collapsed", "", f"**{accuracy['synflow']}**", seconds["synflow"]]
    text = (place.out / "table.md").read_text()
    assert text.index("*single-shot*") < text.index("| magnitude") < text.index("*iterative*") < text.index("| synflow")
    assert "sparsity 98.2 %" in text and "measured once a run (cpu, 1 process)" in text
    svg = (place.out / "accuracy.svg").read_text()
    assert ">magnitude<" in svg and ">synflow<" in svg and ">collapsed<" in svg


def test_another_table_does_not_go_into_this_directory(place: Place, done: Any) -> None:
    before = files(place.out)
    with pytest.raises(ValueError, match=r"was run with other settings: sparsity was 0\.982, now 0\.9"):
        place.run(*place.words("rounds", "--sparsity", "0.9", values=(1, 3), methods=("magnitude", "synflow")))
    with refusal(r"the directory of another table\? Name another --output-dir"):
        place.run(*place.words("data", values=(1, 2), methods=("snip",)))
    with pytest.raises(ValueError, match="the directory of another table"):
        Sweep(place.out).found()  # nor does a sweep over sparsities
    assert before == files(place.out)


# data


@pytest.mark.slow
def test_data_with_two_seeds(recipe: ModuleType, tmp_path: Path) -> None:
    place = Place(tmp_path, recipe)
    flags = ("--seeds", 0, 1, "--rounds", 2)
    assert place.run(*place.words("data", *flags, values=(1, 3), methods=("snip", "px"))) == 0
    sweep = Sweep(place.out, PER_CLASS)
    found = {}
    for method in ("snip", "px"):
        for value in (1, 3):
            recorded = [results(sweep.path(Cell(method, value, seed, PER_CLASS))) for seed in (0, 1)]
            assert [t["settings"]["rounds"] for t in recorded] == [1 if method == "snip" else 2] * 2
            assert [t["settings"]["per_class"] for t in recorded] == [value] * 2
            a, b = (100 * t["results"]["ticket"]["accuracy"] for t in recorded)
            found[method, value] = f"{(a + b) / 2:.2f} ± {abs(a - b) / 2**0.5:.2f}"
    table = place.table()
    assert table["method"] == ["D = 1", "D = 3"]
    for method in ("snip", "px"):
        assert [text.strip("*") for text in table[method]] == [found[method, 1], found[method, 3]]
    overlaps = {(r["method"], r["per_class"], r["seed"]): float(r["overlap"]) for r in place.csv()}
    for seed in ("0", "1"):
        assert overlaps["px", "3", seed] == 1.0 and 0 < overlaps["px", "1", seed] < 1


# before any work


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["rounds", "--methods", "pxx"], "did you mean px"),
        (["rounds", "--methods", "imp"], "see recipes/imp.py"),
        (["data", "--methods", "synflow"], "--methods synflow: it uses no data"),
        (["rounds", "--values", "0"], "--values 0 is too small"),
        (["data", "--values", "150"], "--values 150: in the training images of digits, class 0 has 142 examples"),
        (["rounds", "--", "--per_class", "150"], "--per-class 150: in the training images of digits"),
        (["rounds", "--sparsity", "98.2"], "did you mean 0.982?"),
        (["rounds", "--seeds"], "--seeds: give at least one"),
        (["rounds", "--processes", "0"], "--processes 0 is too small"),
        (["data", "--rounds", "0"], "--rounds 0 is too small"),
        (["rounds", "--", "--rounds", "3"], "use --values"),
        (["data", "--", "--per_class", "3"], "use --values"),
        (["data", "--", "--rounds", "3"], "use --rounds, before the --"),
        (["data", "--", "--sparsity", "0.5"], "use --sparsity, before the --"),
        (["rounds", "--", "--schedule", "one-shot"], "one-shot has one round, not 2"),
        (["rounds", "--", "--lr", "-1"], "--lr -1 must be positive"),
        (["rounds", "--config", "nowhere.yaml"], "nowhere.yaml: No such file"),
    ],
)
def test_bad_input(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], complaint: str
) -> None:
    refused_before_work(recipe, ["ablate.py", *words], complaint, tmp_path, monkeypatch)


def test_the_papers_tables_are_the_defaults(recipe: ModuleType) -> None:
    asked = recipe.parse(["rounds"])
    cells = recipe.grid(asked, ROUNDS)
    by_method = {m: sorted({c.value for c in cells if c.method == m}) for m in asked.methods}
    for method in ("random", "magnitude", "snip", "grasp"):
        assert single_shot(method) and by_method[method] == [1]
    for method in ("synflow", "ntk-sap", "px"):
        assert by_method[method] == [1, 2, 10, 100, 200]
    asked = recipe.parse(["data"])
    assert asked.methods == ["snip", "grasp", "px"] and asked.values == [1, 5, 10, 50, 100]
    px = recipe.flags(asked, Cell("px", 5, 0, PER_CLASS))
    assert px[px.index("--rounds") + 1] == "100" and px[px.index("--per-class") + 1] == "5"
    assert asked.sparsity == recipe.parse(["rounds"]).sparsity == 0.982


def test_a_single_shot_method_has_one_round_though_none_was_asked(recipe: ModuleType) -> None:
    asked = recipe.parse(["rounds", "--values", "10", "--methods", "snip", "px"])
    assert [cell.name for cell in recipe.grid(asked, ROUNDS)] == ["snip-T1-s0", "px-T10-s0"]


def test_the_tables_own_settings_win_over_a_config(recipe: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text("sparsity: 0.5\nrounds: 7\nper_class: 3\nscorer: random\n")
    for table, axis, expected in (
        ("rounds", ROUNDS, {"rounds": 4, "per_class": 3}),
        ("data", PER_CLASS, {"rounds": 1, "per_class": 4}),
    ):
        asked = recipe.parse([table, "--config", str(tmp_path / "all.yaml"), "--sparsity", "0.9"])
        cell = Cell("snip", 4, 0, axis)
        found = cell_settings(asked, cell, recipe.flags(asked, cell))
        assert {key: found[key] for key in expected} == expected
        assert (found["sparsity"], found["scorer"]) == (0.9, "snip")


def test_help_teaches(capsys: pytest.CaptureFixture[str], recipe: ModuleType) -> None:
    for words in (["--help"], ["rounds", "--help"], ["data", "--help"]):
        with pytest.raises(SystemExit):
            recipe.parse(words)
        printed = capsys.readouterr().out
        for command in ("ablate.py rounds --config", "ablate.py data --config"):
            assert f"python recipes/{command} recipes/configs/cifar10-resnet20.yaml" in printed


def test_only_a_timed_cell_prunes_from_the_start(tmp_path: Path) -> None:
    for axis, kept in ((ROUNDS, False), (PER_CLASS, True)):
        sweep, cell = Sweep(tmp_path / axis.key, axis), Cell("px", 3, 0, axis)
        folder = sweep.path(cell) / "checkpoints"
        folder.mkdir(parents=True)
        (sweep.path(cell) / "results.json").write_text('{"finished": false, "seconds": {}, "settings": {}}')
        save_mask(Mask({"w": torch.ones(2, dtype=torch.bool)}), folder / "mask.safetensors", {"round": "1"})
        child = sweep.start(cell, ["true"])
        assert child is not None and child.wait() == 0
        assert (folder / "mask.safetensors").exists() is kept


def _rows(text: str) -> dict[str, list[str]]:
    """Of the first table in a Markdown text."""
    lines = text.split("\nOverlap")[0].splitlines()
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {first: rest for first, *rest in found}
