"""model_cards/RESULTS.md: every number in its tables is that of a run whose results.json is kept, counted anew here."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ttest_rel
from support.launching import REPO, recipe_module

import hf_px
from hf_px.models.load import load
from hf_px.prune_config import DEFAULT_SCORER, TRAINED_SCORER, TRAINED_SPARSITY
from hf_px.refit.options import ROUNDS

HOME = REPO / "model_cards"
KEPT = {path: json.loads(path.read_text()) for path in sorted((HOME / "results").glob("*/*/results.json"))}


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return recipe_module(REPO / "recipes" / "results.py")


def rows() -> dict[tuple[str, str, str], dict[str, str]]:
    """{(table, sparsity, method): {column: cell}}"""
    found = {}
    for name, text in re.findall(r"<!-- table: (\w+) -->\n(.*?)<!-- end -->", (HOME / "RESULTS.md").read_text(), re.S):
        head, _, *lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.strip().splitlines()]
        if "method" in head:
            found |= {(name, line[0], line[1]): dict(zip(head, line)) for line in lines}
    return found


def shown(values: list[float]) -> str:
    return f"{np.mean(values):.2f}" + (f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else "")


def method_of(settings: dict[str, Any]) -> str:
    other = settings["scorer"] == "px" and settings["norm"] != "batch"
    return f"px:{settings['norm']}" if other else settings["scorer"]


def test_each_row_is_the_mean_of_the_runs_that_are_kept() -> None:
    cells = rows()
    by: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for path, recorded in KEPT.items():
        sparsity = f"{100 * recorded['settings']['sparsity']:g} %"
        by.setdefault((path.parts[-3], sparsity, method_of(recorded["settings"])), []).append(recorded)
    assert set(by) == {at for at in cells if at[2] != "dense"}  # no run that is not shown, no row without a run
    for at, runs in by.items():
        row = cells[at]
        ticket = [100 * recorded["results"]["ticket"]["accuracy"] for recorded in runs]
        links = dict(re.findall(r"\[(\d+)\]\(([^)]*)\)", row["seeds"]))
        assert set(links) == {str(recorded["settings"]["seed"]) for recorded in runs}
        for seed, link in links.items():  # to the very run
            recorded = json.loads((HOME / link).read_text())
            assert recorded in runs and str(recorded["settings"]["seed"]) == seed
        assert row["layers emptied"] == ", ".join(str(len(recorded["mask"]["emptied"])) for recorded in runs)
        if "before training" in row:
            assert row["before training"] == shown(
                [100 * recorded["results"]["pruned"]["accuracy"] for recorded in runs]
            )
            assert row["ours, 10 epochs"] == shown(ticket)
        elif "after pruning" in row:
            pruned = [100 * recorded["results"]["pruned"]["accuracy"] for recorded in runs]
            assert row["after pruning"] == shown(pruned) and row["after training"] == shown(ticket)
        else:
            ridge = shown([100 * recorded["results"]["ridge"]["accuracy"] for recorded in runs])
            assert row["ridge head, before training"] == ridge and row["after training"] == shown(ticket)


def test_differences_are_paired_by_seed() -> None:
    """scipy's own test of paired samples gives the interval."""
    page = (HOME / "RESULTS.md").read_text()
    lines = re.search(r"<!-- table: cifar10_resnet20_short_head_paired -->\n(.*?)<!-- end -->", page, re.S)[
        1
    ].splitlines()
    by: dict[str, dict[int, float]] = {}
    for path, run in KEPT.items():
        if path.parts[-3] == "cifar10_resnet20_short_head":
            by.setdefault(run["settings"]["scorer"], {})[run["settings"]["seed"]] = run["results"]["ticket"]["accuracy"]
    assert len(lines) == 2 + len(by) - 1
    for line in lines[2:]:
        _, method, difference, interval, seeds = (cell.strip() for cell in line.split("|")[1:-1])
        chosen = [int(seed) for seed in seeds.split(", ")]
        assert set(chosen) == by[method].keys() & by["magnitude"].keys()
        mine, other = ([100 * by[name][seed] for seed in chosen] for name in (method, "magnitude"))
        assert float(difference) == pytest.approx(np.mean(mine) - np.mean(other), abs=0.006)
        if len(chosen) > 1:
            low, high = ttest_rel(mine, other).confidence_interval(0.95)
            assert interval == f"{low:+.1f} to {high:+.1f}"


def test_the_masks_that_are_compared_are_those_that_were_trained() -> None:
    """`hf-px prune` found them anew, on another machine than some of the runs."""
    trained = {
        at.parent.name.removesuffix("-0.982-s0"): recorded["mask"]["digest"]
        for at, recorded in KEPT.items()
        if at.parts[-3] == "cifar10_resnet20_short" and at.parent.name.endswith("-0.982-s0")
    }
    trained["px-batch"] = trained.pop("px")
    found = {
        path.parent.name: json.loads(path.read_text())["digest"]
        for path in (HOME / "results" / "cifar10_resnet20_masks").glob("*/prune.json")
    }
    both = found.keys() & trained.keys()
    assert len(both) >= 6 and all(found[name] == trained[name] for name in both)


@pytest.mark.slow
def test_what_two_masks_share_is_counted_again() -> None:
    """Of two methods that need no data, from the weights that seed 0 draws."""
    with (HOME / "results" / "cifar10_resnet20_masks" / "tables" / "overlap-of-masks.csv").open() as file:
        recorded = {row[""]: row for row in csv.DictReader(file)}
    model = load("resnet20", num_classes=10, seed=0).model
    one, other = (
        torch.cat(
            [
                bits.view(-1)
                for bits in hf_px.prune(model, name, sparsity=0.982, keep_head=False, progress=False).bits.values()
            ]
        )
        for name in ("magnitude", "synflow-l2")
    )
    jaccard = int((one & other).sum()) / int((one | other).sum())
    assert float(recorded["magnitude"]["synflow-l2"]) == pytest.approx(jaccard, abs=2e-3)


def test_the_dense_row_is_that_of_each_seed_once() -> None:
    for (name, _, method), row in rows().items():
        if method == "dense":
            runs = [recorded for path, recorded in KEPT.items() if path.parts[-3] == name]
            having = [recorded for recorded in runs if "dense" in recorded["results"]]
            by_seed = {recorded["settings"]["seed"]: recorded["results"]["dense"]["accuracy"] for recorded in having}
            assert len(
                {(recorded["settings"]["seed"], recorded["results"]["dense"]["accuracy"]) for recorded in having}
            ) == len(by_seed)
            values = [100 * by_seed[seed] for seed in sorted(by_seed)]
            assert shown(values) in row.values()


def test_the_default_is_the_method_that_the_numbers_support() -> None:
    """Of all methods, at the sparsity of the paper's table, the best by its mean over seeds."""
    by: dict[str, list[float]] = {}
    for path, recorded in KEPT.items():
        if path.parts[-3] == "cifar10_resnet20_short" and recorded["settings"]["sparsity"] == 0.982:
            by.setdefault(method_of(recorded["settings"]), []).append(recorded["results"]["ticket"]["accuracy"])
    assert max(by, key=lambda method: np.mean(by[method])) == DEFAULT_SCORER


def repair_cells() -> dict[tuple[str, str, str], dict[str, Any]]:
    """{(mask, sparsity, rounds): what recipes/masks_and_repair.py measured}"""
    files = (HOME / "results" / "imagenet_resnet50_repair").glob("*.json")
    found = [json.loads(path.read_text())["cells"] for path in files]
    return {tuple(key.split()): cell for cells in found for key, cell in cells.items()}  # type: ignore[misc]


def test_the_table_of_masks_and_repair_is_what_was_measured() -> None:
    page = (HOME / "RESULTS.md").read_text()
    table = page[page.index("<!-- table: imagenet_resnet50_repair") :]
    lines = [line for line in table[: table.index("<!-- end -->")].splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[1:]]
    shown = {(mask, sparsity, rounds): numbers for sparsity, mask, rounds, *numbers in rows if mask != "dense"}
    cells = repair_cells()
    assert len(shown) == len(cells) >= 20
    for (mask, sparsity, rounds), cell in cells.items():
        row = shown[mask, f"{100 * float(sparsity):g} %", rounds]
        assert [float(row[0]), float(row[1])] == [round(cell["norms"], 1), round(cell["repaired"], 1)]


def test_the_default_for_trained_weights_is_the_best_of_the_table() -> None:
    """At the default sparsity, no method does better in one cut, and the default rounds do better than one cut."""
    cells = repair_cells()
    at = f"{TRAINED_SPARSITY:g}"
    one_cut = {
        mask: cell["repaired"] for (mask, sparsity, rounds), cell in cells.items() if (sparsity, rounds) == (at, "1")
    }
    assert len(one_cut) >= 8 and one_cut[TRAINED_SCORER] == max(one_cut.values())
    assert cells[TRAINED_SCORER, at, str(ROUNDS)]["repaired"] > one_cut[TRAINED_SCORER]


def test_each_run_is_of_its_table_and_says_how_it_was_made() -> None:
    assert KEPT
    for path, recorded in KEPT.items():
        assert (
            recorded["finished"]
            and recorded["command"].startswith("accelerate launch")
            and recorded["versions"]["torch"]
        )
        others = [other["settings"] for at, other in KEPT.items() if at.parts[-3] == path.parts[-3]]
        for key, value in recorded["settings"].items():
            # whether there is a dense twin beside it changes no ticket
            if key not in ("scorer", "norm", "rounds", "sparsity", "seed", "dense"):
                assert all(other.get(key, value) == value for other in others), (path, key)  # knobs are added


def test_what_the_page_says_of_the_paper_is_the_papers(recipe: ModuleType, shared: Path) -> None:
    text = (shared / "paper.tex").read_text(encoding="utf-8")
    text = text[: text.index(r"\label{tab:tab_T_ablation}")]
    text = re.sub(r"\\cite\{[^}]*\}|\\textbf\{([^}]*)\}", r"\1", text[text.rindex(r"\begin{tabular}") :])
    table = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("&")]
        # accuracy and seconds at T = 1, 2, 10, 100, 200; a single-shot method has T = 1 alone
        if len(cells) == 13 and (pairs := [pair for pair in (cells[7:9], cells[1:3]) if pair[0][:1].isdigit()]):
            table[cells[0].removesuffix(" (Ours)").lower()] = tuple(map(float, pairs[0]))
    assert len(table) == 7 and table == recipe.PAPER  # without IMP, which is not run here


def test_the_page_is_up_to_date(recipe: ModuleType) -> None:
    text = (HOME / "RESULTS.md").read_text(encoding="utf-8")
    assert recipe.page(text) == text


def test_a_change_shows(recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """--add takes the finished runs of a sweep, and --check sees a page that says something else."""
    for seed, accuracy in enumerate((0.5, 0.6)):
        recorded = next(iter(KEPT.values())) | {"finished": seed == 0}
        recorded["settings"] = {**recorded["settings"], "seed": seed}
        recorded["results"] = {**recorded["results"], "ticket": {"accuracy": accuracy}}
        (tmp_path / f"sweep/cells/px-0.982-s{seed}").mkdir(parents=True)
        (tmp_path / f"sweep/cells/px-0.982-s{seed}/results.json").write_text(json.dumps(recorded))
    page = tmp_path / "RESULTS.md"
    page.write_text("Words.\n<!-- table: cifar10_resnet20_short -->\n<!-- end -->\nMore.\n")
    monkeypatch.setattr(recipe, "KEPT", tmp_path / "results")
    monkeypatch.setattr(recipe, "PAGE", page)
    monkeypatch.setattr("sys.argv", ["results.py", "--add", str(tmp_path / "sweep"), "cifar10_resnet20_short"])
    assert recipe.main() == 0
    assert "| 50.00 | [0](results/" in page.read_text() and "60.00" not in page.read_text()  # the other is not finished
    assert page.read_text().startswith("Words.\n") and page.read_text().endswith("\nMore.\n")
    (tmp_path / "sweep/cells/broken").mkdir()
    for text in ("{", '{"finished": true}'):
        (tmp_path / "sweep/cells/broken/results.json").write_text(text)
        with pytest.raises(ValueError, match=r"broken/results\.json: not the results of a run"):
            recipe.add(tmp_path / "sweep", "cifar10_resnet20_short")
    assert not (tmp_path / "results/cifar10_resnet20_short/broken").exists()
    with pytest.raises(ValueError, match="no finished run under"):
        recipe.add(tmp_path / "nowhere", "cifar10_resnet20_short")
    monkeypatch.setattr("sys.argv", ["results.py", "--check"])
    assert recipe.main() == 0
    page.write_text(page.read_text().replace("50.00", "70.00"))
    assert recipe.main() == 1 and "is out of date with" in capsys.readouterr().err
