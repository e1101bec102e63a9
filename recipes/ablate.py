"""The paper's two ablations, by rounds and by data: one run of a recipe for each method, value and seed.

    python recipes/ablate.py rounds --config recipes/configs/cifar10-resnet20.yaml --seeds 0 1 2
        the paper's Table 2: accuracy and seconds of pruning at T = 1, 2, 10, 100 and 200 rounds, at 98.2 % sparsity.
        A single-shot method (random, magnitude, snip, grasp) always has one round
    python recipes/ablate.py data --config recipes/configs/cifar10-resnet20.yaml --seeds 0 1 2
        the paper's Table 4: accuracy with |D| = 1, 5, 10, 50 and 100 examples per class in the pruning set, for methods
        that use data; iterative methods have their own number of rounds
    python recipes/ablate.py rounds --values 1 2 10 -- --epochs 3
        a small one: no network, handwritten digits. Flags behind -- go to every cell: any flag of
        recipes/prune_finetune.py
    python recipes/ablate.py rounds ... --dry-run
        list the cells and their state

Run it again after a crash: finished cells are skipped, unfinished ones continue; but a pruning that was interrupted
starts again, so that its seconds are those of all rounds. Run it again with more values, methods or seeds, and they
join the table. Run it twice at the same time, and the two share the work; seconds are then those of a busy machine, and
each is measured once.

A method may remove the last path from input to output, as SynFlow does in one round. That is a result, not a failure:
the table says "collapsed".

After every cell the output directory holds results.csv with a line per cell; table.md, with the overlap of each mask
and the one at the largest value; and the figure accuracy.svg or mean_iou.svg. cells/ holds the runs with their tickets,
logs/ what they printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_px.core.options import HelpFormatter, at_least, renamed_arguments
from hf_px.core.registry import scorers
from hf_px.data import balanced, open_data
from hf_px.data.presets import preset_of
from hf_px.data.source import on_disk
from hf_px.prune_config import DEFAULT_SPARSITY, PruneConfig
from hf_px.training.command_line import run_recipe
from hf_px.training.sweep import PER_CLASS, ROUNDS, Cell, Sweep, SweepAxis, single_shot
from hf_px.training.sweep.cells import check_method
from hf_px.training.sweep.runner import (  # fmt: skip
    RESERVED,
    add_common_flags,
    cell_flags,
    cell_settings,
    check_common,
    parse_sweep,
    run_cells,
)
from hf_px.training.tasks import CLASSIFICATION, task_of

AXES = {"rounds": ROUNDS, "data": PER_CLASS}
METHODS = {  # those of the paper's tables
    "rounds": ["random", "magnitude", "snip", "grasp", "synflow", "ntk-sap", "px"],
    "data": ["snip", "grasp", "px"],
}
VALUES = {"rounds": [1, 2, 10, 100, 200], "data": [1, 5, 10, 50, 100]}
HELP = {"rounds": "pruning rounds T: the paper's Table 2", "data": "examples per class |D|: the paper's Table 4"}


def parse(argv: list[str]) -> argparse.Namespace:
    how: dict[str, Any] = {"description": __doc__, "formatter_class": HelpFormatter, "allow_abbrev": False}
    parser = argparse.ArgumentParser(prog="ablate.py", **how)
    tables = parser.add_subparsers(dest="table", required=True, metavar="{rounds,data}")
    for name, axis in AXES.items():
        table = tables.add_parser(name, help=HELP[name], **how)
        add, methods, values = table.add_argument, METHODS[name], VALUES[name]
        shown = " ".join(methods)
        add("--methods", nargs="+", default=methods, metavar="NAME", help=f"of `hf-px scorers` (default: {shown})")
        shown = f"{axis.label} (default: {' '.join(map(str, values))})"
        add("--values", nargs="+", type=int, default=values, metavar=axis.prefix, help=shown)
        shown = f"in [0, 1) (default: {DEFAULT_SPARSITY})"
        add("--sparsity", type=float, default=DEFAULT_SPARSITY, metavar="S", help=shown)
        if axis is PER_CLASS:
            add("--rounds", type=int, metavar="T", help="of the iterative methods (default: the method's own)")
        add_common_flags(table, f"out/ablate-{name}")
    return parse_sweep(parser, argv)


def main() -> int:
    args = parse(sys.argv[1:])
    axis = AXES[args.table]
    check(args, axis)
    cells = list(dict.fromkeys(grid(args, axis)))
    check_examples(args, {cell: cell_settings(args, cell, flags(args, cell)) for cell in cells})
    recipes = Path(__file__).resolve().parent
    return run_cells(args, recipes, Sweep(args.output_dir.expanduser(), axis), cells, lambda cell: flags(args, cell))


def grid(args: argparse.Namespace, axis: SweepAxis) -> list[Cell]:
    """Seeds outermost, as in a sweep: the whole table of the first seed is there soon."""
    cells = [Cell(m, value, seed, axis) for seed in args.seeds for value in args.values for m in args.methods]
    if axis is not ROUNDS:
        return cells
    return [Cell(cell.method, 1, cell.seed, axis) if single_shot(cell.method) else cell for cell in cells]


def flags(args: argparse.Namespace, cell: Cell) -> list[str]:
    """The flags of a cell; the settings of the table override those of a config file."""
    fixed = ["--sparsity", repr(args.sparsity)]
    if cell.axis is PER_CLASS:
        own = scorers[cell.method].rounds
        fixed += ["--rounds", str(own if single_shot(cell.method) else args.rounds or own)]
    return [*cell_flags(args, cell), *fixed]


# Checks before any work


def check(args: argparse.Namespace, axis: SweepAxis) -> None:
    for method in args.methods:
        if method == "imp":
            raise ValueError("--methods imp: it trains between its rounds, which is another table; see recipes/imp.py")
        check_method(method)
        if axis is PER_CLASS and scorers[method].needs not in ("inputs", "labels"):
            users = ", ".join(name for name in scorers if scorers[name].needs in ("inputs", "labels"))
            raise ValueError(f"--methods {method}: it uses no data, so the amount does not matter; {users} do")
    at_least(1, values=min(args.values))
    PruneConfig(sparsity=args.sparsity)
    reserved = {**RESERVED, "sparsity": "--sparsity, before the --", axis.key: "--values"}
    if axis is PER_CLASS:
        at_least(1, rounds=args.rounds)
        reserved["rounds"] = "--rounds, before the --"
    check_common(args, reserved)


def check_examples(args: argparse.Namespace, settings: Mapping[Cell, Mapping[str, Any]]) -> None:
    """An error if a class has too few examples; only data on this disk can be checked at once."""
    using_data = [settings[cell] for cell in settings if scorers[cell.method].needs != "weights"]
    most = max(using_data, key=lambda cell: cell["per_class"], default=None)
    if most is None or task_of(most["model"]) is not CLASSIFICATION:
        return
    source = most["data"]
    if source != "digits" and on_disk(source, preset_of(source), most["data_revision"]) is None:
        return
    columns = {name: most[name] for name in ("train_split", "image_column", "label_column")}
    where = {"config": most["data_config"], "revision": most["data_revision"]}
    with renamed_arguments(config="data_config", revision="data_revision"):
        data = open_data(source, need_test=False, **where, **columns)
    try:
        balanced(data.train.labels, most["per_class"], names=data.classes)
    except ValueError as error:
        flag = "--values" if args.table == "data" else "--per-class"
        raise ValueError(f"{flag} {most['per_class']}: in the training images of {source}, {error}") from error


if __name__ == "__main__":
    run_recipe(lambda: sys.exit(main()))
