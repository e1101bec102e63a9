"""model_cards/RESULTS.md: writes its tables from the results.json files under model_cards/results.

    python recipes/results.py            write the tables
    python recipes/results.py --check    exit with 1 if the page is out of date
    python recipes/results.py --add out/sweep cifar10_resnet20_short
        copy results.json of the finished runs of a sweep to that name, then write the tables

The text between the tables is written by hand and stays.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy.stats import t as student_t

from hf_px.core.files import write_atomic
from hf_px.training.command_line import run_recipe
from hf_px.training.run_directory import results_bytes

HOME = Path(__file__).resolve().parents[1] / "model_cards"
PAGE, KEPT = HOME / "RESULTS.md", HOME / "results"
# the paper's ablation of rounds, accuracy and seconds of pruning: ResNet-20, CIFAR-10, 98.2 %, 160 epochs, T = 100 for
# iterative methods, mean of three runs; seconds on an NVIDIA Titan Xp
PAPER = {
    "random": (72.31, 0.0003), "magnitude": (76.12, 0.0006), "snip": (75.39, 0.17), "grasp": (76.30, 0.39),
    "synflow": (75.19, 13.40), "ntk-sap": (74.55, 20.92), "px": (77.08, 14.13),
}  # fmt: skip
Run = Mapping[str, Any]
PAIRED = "_paired"  # after the name of a directory: the table of differences of its runs


def runs(name: str) -> list[Run]:
    """The finished runs under this name, each with its path relative to the page."""
    paths = sorted((KEPT / name).glob("*/results.json"))
    found = [{"path": f"results/{name}/{path.parent.name}", **json.loads(path.read_text("utf-8"))} for path in paths]
    return [run for run in found if run["finished"]]


def seeds(some: Sequence[Run]) -> str:
    """Seeds, each a link to the run's results.json with its command, settings and results."""
    by = sorted(some, key=lambda run: run["settings"]["seed"])
    return ", ".join(f"[{run['settings']['seed']}]({run['path']}/results.json)" for run in by)


def method_of(run: Run) -> str:
    """px:running for px with another norm than its default."""
    scorer, norm = run["settings"]["scorer"], run["settings"].get("norm")
    return f"{scorer}:{norm}" if scorer == "px" and norm != "batch" else scorer


def groups(found: Sequence[Run]) -> dict[tuple[float, str], list[Run]]:
    """{(sparsity, method): its runs}, sparsity by sparsity, the best first."""
    by: dict[tuple[float, str], list[Run]] = {}
    for run in found:
        by.setdefault((run["settings"]["sparsity"], method_of(run)), []).append(run)
    order = sorted(by, key=lambda at: (-at[0], -mean(accuracy(run) for run in by[at])))
    return {at: by[at] for at in order}


def accuracy(run: Run, stage: str = "ticket") -> float:
    return 100 * run["results"][stage]["accuracy"]


def spread(values: Sequence[float]) -> str:
    """Mean, and the sample deviation if there is more than one value."""
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def dense_runs(found: Sequence[Run]) -> list[Run]:
    """One run per seed: the dense twin is the same for all methods, and the run that trained it has its seconds."""
    having = sorted((run for run in found if "dense" in run["results"]), key=lambda run: "dense" in run["seconds"])
    by = {run["settings"]["seed"]: run for run in having}
    return [by[seed] for seed in sorted(by)]


def sparse_table(name: str) -> list[str]:
    """A row per method and sparsity: ours beside the paper's."""
    found = runs(name)
    lines = [
        "| sparsity | method | paper, 160 epochs | ours, 10 epochs | seeds | before training | layers emptied | "
        "classes lost | seconds of pruning, paper | ours |",
        "|---" * 10 + "|",
    ]
    if dense := dense_runs(found):
        lines.append(
            f"| 0 | dense | | {spread([accuracy(run, 'dense') for run in dense])} | {seeds(dense)} | | | | | |"
        )
    for (sparsity, method), some in groups(found).items():
        paper, seconds = PAPER.get(method, ("", "")) if sparsity == 0.982 else ("", "")
        cells = [
            f"{100 * sparsity:g} %", method, f"{paper:.2f}" if paper else "", spread([accuracy(run) for run in some]),
            seeds(some), spread([accuracy(run, "pruned") for run in some]),
            ", ".join(str(len(run["mask"]["emptied"])) for run in some),
            ", ".join(str(len(run["mask"]["silent_classes"])) for run in some),
            f"{seconds}", ", ".join(f"{run['seconds']['pruning']:.1f}" for run in some),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def paired_table(name: str) -> list[str]:
    """Accuracy minus that of magnitude at the same seed and sparsity: mean, and interval of 95 % by Student's t."""
    found = groups(runs(name.removesuffix(PAIRED)))
    lines = ["| sparsity | minus magnitude | difference | 95 % | seeds |", "|---" * 5 + "|"]
    for (sparsity, method), some in found.items():
        other = {run["settings"]["seed"]: accuracy(run) for run in found.get((sparsity, "magnitude"), [])}
        pairs = {run["settings"]["seed"]: accuracy(run) for run in some if run["settings"]["seed"] in other}
        if method == "magnitude" or not pairs:
            continue
        gaps = [pairs[seed] - other[seed] for seed in sorted(pairs)]
        half = student_t.ppf(0.975, len(gaps) - 1) * stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else None
        interval = "" if half is None else f"{mean(gaps) - half:+.1f} to {mean(gaps) + half:+.1f}"
        cells = [f"{100 * sparsity:g} %", method, f"{mean(gaps):+.2f}", interval, ", ".join(map(str, sorted(pairs)))]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def transfer_table(name: str) -> list[str]:
    """A row per method and sparsity: a ridge head on the pruned features, then after training."""
    return _before_and_after(name, "ridge", "ridge head, before training", dense_before="ridge_dense")


def vit_table(name: str) -> list[str]:
    """A row per method and sparsity: right after pruning and after training."""
    return _before_and_after(name, "pruned", "after pruning")


def _before_and_after(name: str, stage: str, title: str, dense_before: str | None = None) -> list[str]:
    found = runs(name)
    lines = [f"| sparsity | method | {title} | after training | seeds | layers emptied |", "|---" * 6 + "|"]
    if dense := dense_runs(found):
        before = f" {spread([accuracy(run, dense_before) for run in dense])}" if dense_before else ""
        after = spread([accuracy(run, "dense") for run in dense])
        lines.append(f"| 0 | dense |{before} | {after} | {seeds(dense)} | |")
    for (sparsity, method), some in groups(found).items():
        cells = [
            f"{100 * sparsity:g} %", method, spread([accuracy(run, stage) for run in some]),
            spread([accuracy(run) for run in some]), seeds(some),
            ", ".join(str(len(run["mask"]["emptied"])) for run in some),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def masks_table(name: str) -> list[str]:
    """A row per mask: its overlap with others and what it leaves of the network, as `hf-px report` measured."""
    overlap, facts = (_csv(KEPT / name / "tables" / f"{table}.csv") for table in ("overlap-of-masks", "facts"))
    others = ["px-batch", "px-running", "px-released", "px-path", "synflow-l2"]
    left = ["layers that carry nothing", "classes without a weight", "output units on a path"]
    lines = [f"| mask | {' | '.join([*others, *left])} |", "|---" * (1 + len(others) + len(left)) + "|"]
    for mask, row in overlap.items():
        cells = [mask, *(f"{float(row[other]):.2f}" for other in others), *(facts[fact][mask] for fact in left)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def repair_table(name: str) -> list[str]:
    """A row per mask, number of rounds and sparsity, as recipes/masks_and_repair.py measured."""
    files = [json.loads(path.read_text("utf-8")) for path in sorted((KEPT / name).glob("*.json"))]
    found = {"dense": files[0]["dense"], "cells": {key: c for file in files for key, c in file["cells"].items()}}
    columns = ["sparsity", "mask", "rounds", "norms anew", "repaired", "error by layer", "seconds"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines.append(f"| 0 | dense | | | {found['dense']:.1f} | | |")
    cells = [(*key.split(), cell) for key, cell in found["cells"].items()]
    for mask, sparsity, rounds, cell in sorted(cells, key=lambda row: (float(row[1]), -row[3]["repaired"])):
        before, after = cell["layer_error"]
        seconds = cell["seconds_pruning"] + cell["seconds_repair"]
        accuracies = " | ".join(f"{cell[key]:.1f}" for key in ("norms", "repaired"))
        error = f"{100 * before:.1f} → {100 * after:.1f} %"
        lines.append(f"| {100 * float(sparsity):g} % | {mask} | {rounds} | {accuracies} | {error} | {seconds:.0f} |")
    return lines


def fine_tuning_table(name: str) -> list[str]:
    """A row for each set of settings: dense twin and ticket, by backbone and data set, of recipes/fine_tuning.py."""
    path = KEPT / name / "cells.json"
    cells = json.loads(path.read_text("utf-8"))["cells"] if path.is_file() else {}
    keys = [tuple(key.split(", ")) for key in cells]
    columns = list(dict.fromkeys(key[1:] for key in keys))
    lines = [f"| settings | {' | '.join(', '.join(column) for column in columns)} |", "|---" * (1 + len(columns)) + "|"]
    for settings in dict.fromkeys(key[0] for key in keys):
        row = [settings]
        for column in columns:
            found = cells.get(", ".join((settings, *column)), {}).get("accuracy")
            row.append(" / ".join(f"{100 * found[stage]:.1f}" for stage in ("dense", "ticket")) if found else "")
        lines.append(f"| {' | '.join(row)} |")
    return lines


def _csv(path: Path) -> dict[str, dict[str, str]]:
    """{first cell of a row: {column: cell}}"""
    with path.open(newline="", encoding="utf-8") as file:
        return {row[""]: row for row in csv.DictReader(file)}


TABLES = {
    "cifar10_resnet20_short": sparse_table,
    "cifar10_resnet20_short_head": sparse_table,
    "cifar10_resnet20_short_head_paired": paired_table,
    "cifar10_resnet50_transfer": transfer_table,
    "cifar10_resnet50_transfer_repair": transfer_table,
    "cifar10_vit_before": vit_table,
    "cifar10_vit": vit_table,
    "cifar10_vit_erk": vit_table,
    "cifar10_vit_old_units": vit_table,
    "cifar10_vit_trained": vit_table,
    "cifar10_vit_repair_before": repair_table,
    "cifar10_vit_repair": repair_table,
    "cifar10_vit_repair_old_units": repair_table,
    "cifar10_resnet20_masks": masks_table,
    "imagenet_resnet50_repair": repair_table,
    "fine_tuning": fine_tuning_table,
}
OF_OTHER_RECIPES = (masks_table, repair_table, fine_tuning_table, paired_table)


def page(text: str) -> str:
    """The page with new tables, each between <!-- table: NAME --> and <!-- end -->."""

    def table(match: re.Match[str]) -> str:
        return f"{match[1]}\n" + "\n".join(TABLES[match[2]](match[2])) + f"\n{match[3]}"

    return re.sub(r"(<!-- table: (\w+) -->)\n.*?(<!-- end -->)", table, text, flags=re.DOTALL)


def add(sweep: Path, name: str) -> int:
    """Copy results.json of each finished cell, all or none; returns their number."""
    if name not in TABLES or TABLES[name] in OF_OTHER_RECIPES:
        known = ", ".join(table for table in TABLES if TABLES[table] not in OF_OTHER_RECIPES)
        raise ValueError(f"--add {name}: no such table of runs; there are {known}")
    finished = {}
    for path in sorted((sweep / "cells").glob("*/results.json")):
        try:
            results = json.loads(path.read_bytes())
            if results["finished"]:
                # what the tables show of it
                groups([results]), accuracy(results, "pruned"), len(results["mask"]["emptied"])
                finished[path.parent.name] = results_bytes(results)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: not the results of a run ({type(error).__name__}: {error})") from error
    if not finished:
        raise ValueError(f"--add {sweep}: no finished run under {sweep / 'cells'}; name the output_dir of a sweep")
    for cell, data in finished.items():
        (KEPT / name / cell).mkdir(parents=True, exist_ok=True)
        write_atomic(KEPT / name / cell / "results.json", data)
    return len(finished)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is out of date")
    what.add_argument("--add", nargs=2, metavar=("SWEEP", "NAME"), help="copy the finished runs of a sweep first")
    args = parser.parse_args()
    if args.add:
        print(f"{add(Path(args.add[0]), args.add[1])} finished runs in {KEPT / args.add[1]}")
    before = PAGE.read_text(encoding="utf-8")
    after = page(before)
    if args.check:
        if before != after:
            print(f"{PAGE} is out of date with {KEPT}; run python recipes/results.py", file=sys.stderr)
        return int(before != after)
    write_atomic(PAGE, after.encode())
    return 0


if __name__ == "__main__":
    run_recipe(lambda: sys.exit(main()))
