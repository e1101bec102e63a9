"""How many rounds, how much data: the paper's two ablations, one run of a recipe for each method, value and seed.

    python recipes/ablate.py rounds --config recipes/configs/cifar10-resnet20.yaml --seeds 0 1 2
        the paper's Table 2: accuracy and seconds of pruning at T = 1, 2, 10, 100 and 200 rounds, at 98.2 % sparsity.
        A single-shot method (random, magnitude, snip, grasp) has one round, whatever is asked of the others
    python recipes/ablate.py data --config recipes/configs/cifar10-resnet20.yaml --seeds 0 1 2
        its Table 4: accuracy with |D| = 1, 5, 10, 50 and 100 examples of each class to prune by, for methods that look
        at data; the iterative ones with the rounds that they have of their own
    python recipes/ablate.py rounds --values 1 2 10 -- --epochs 3
        a small one: no network, handwritten digits. What follows -- goes to every cell: any flag of
        recipes/prune_finetune.py
    python recipes/ablate.py rounds ... --dry_run
        lists the cells, and which are done

Run it again after a crash: what is finished stays as it is, what was begun goes on where it was; but a pruning that was
cut short starts again, so that its seconds are those of the whole. Run it again with more values, methods or seeds, and
they join the table. Run it twice at the same time, and they share the work; but seconds that were taken on a busy
machine are those of a busy machine, and each is measured once.

A method may remove the last path from input to output, as SynFlow does in one round. That is a result, not a failure:
the table says "collapsed".

In the output directory, after every cell: results.csv, one line a cell; table.md, with the overlap of each mask with
the one at the largest value; and a figure, accuracy or mean_iou, as .svg and .png. cells/ holds the runs with their
tickets, logs/ what they printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweep import TAKEN, check_rest, flags, parsed, settings, work

from hf_px.core.allocate import scope
from hf_px.core.registry import nearest, scorers
from hf_px.data import balanced, open_data
from hf_px.data.load import on_disk
from hf_px.data.presets import preset_of
from hf_px.pruning import checked_sparsity, list_scorers
from hf_px.training.config import at_least, run
from hf_px.training.sweep import PER_CLASS, ROUNDS, Axis, Cell, Sweep, single_shot
from hf_px.training.tasks import CLASSIFICATION, task_of

AXES = {"rounds": ROUNDS, "data": PER_CLASS}
METHODS = {  # the paper's
    "rounds": ["random", "magnitude", "snip", "grasp", "synflow", "ntk-sap", "px"],
    "data": ["snip", "grasp", "px"],
}
VALUES = {"rounds": [1, 2, 10, 100, 200], "data": [1, 5, 10, 50, 100]}
HELP = {"rounds": "pruning rounds T: the paper's Table 2", "data": "examples per class |D|: the paper's Table 4"}


def knobs(argv: Sequence[str]) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="ablate.py", description=__doc__, formatter_class=form, allow_abbrev=False)
    tables = parser.add_subparsers(dest="table", required=True, metavar="{rounds,data}")
    for name, axis in AXES.items():
        table = tables.add_parser(name, help=HELP[name], description=__doc__, formatter_class=form, allow_abbrev=False)
        add = table.add_argument
        values, methods = " ".join(map(str, VALUES[name])), " ".join(METHODS[name])
        add("--config", metavar="FILE", help="a yaml file of prune_finetune's options, for every cell")
        add(
            "--methods", nargs="+", default=METHODS[name], metavar="NAME",
            help=f"of `hf-px scorers` (default: {methods})",
        )  # fmt: skip
        add(
            "--values", nargs="+", type=int, default=VALUES[name], metavar=axis.mark,
            help=f"{axis.label} (default: {values})",
        )  # fmt: skip
        add("--sparsity", type=float, default=0.982, metavar="S", help="in [0, 1) (default: 0.982)")
        if axis is PER_CLASS:
            add("--rounds", type=int, metavar="T", help="of the iterative methods (default: the method's own)")
        add("--seeds", nargs="*", type=int, default=[0], metavar="SEED", help="(default: 0)")
        add(
            "--output_dir", type=Path, default=Path(f"out/ablate-{name}"), metavar="DIR",
            help=f"(default: out/ablate-{name})",
        )  # fmt: skip
        add("--processes", type=int, metavar="N", help="of each cell, for accelerate launch (default: what it says)")
        add("--dry_run", action="store_true", help="list the cells and how far they are, and run none")
    return parsed(parser, argv)


def main() -> int:
    asked = knobs(sys.argv[1:])
    axis = AXES[asked.table]
    check(asked, axis)
    cells = list(dict.fromkeys(grid(asked, axis)))
    check_examples(asked, {cell: settings(asked, cell, words(asked, cell)) for cell in cells})
    return work(asked, Sweep(asked.output_dir.expanduser(), axis), cells, lambda cell: words(asked, cell))


def grid(asked: argparse.Namespace, axis: Axis) -> list[Cell]:
    """Seeds outermost, as in a sweep: the first seed's whole table is there soon."""
    cells = [Cell(m, value, seed, axis) for seed in asked.seeds for value in asked.values for m in asked.methods]
    if axis is not ROUNDS:
        return cells
    return [Cell(cell.method, 1, cell.seed, axis) if single_shot(cell.method) else cell for cell in cells]


def words(asked: argparse.Namespace, cell: Cell) -> list[str]:
    """A cell's flags, in which the table's own settings win over those of a config."""
    fixed = ["--sparsity", repr(asked.sparsity)]
    if cell.axis is PER_CLASS:
        own = scorers[cell.method].rounds
        fixed += ["--rounds", str(own if single_shot(cell.method) else asked.rounds or own)]
    return [*flags(asked, cell), *fixed]


# before any work


def check(asked: argparse.Namespace, axis: Axis) -> None:
    """Refuse what can be refused at once."""
    for method in asked.methods:
        if method == "imp":
            raise ValueError("--methods imp: it trains between its rounds, so it has no place here; see recipes/imp.py")
        if method not in scorers:
            hint = nearest(method, list_scorers(), 0.4)
            raise ValueError(f"--methods {method}: unknown; {hint}There are: {', '.join(list_scorers())}")
        if axis is PER_CLASS and scorers[method].needs not in ("inputs", "labels"):
            looking = ", ".join(name for name in scorers if scorers[name].needs in ("inputs", "labels"))
            raise ValueError(f"--methods {method}: it looks at no data, so its amount says nothing; {looking} do")
    at_least(1, values=min(asked.values))
    checked_sparsity(asked.sparsity, scope("global"))
    taken = {**TAKEN, "sparsity": "--sparsity, before the --", axis.key: "--values"}
    if axis is PER_CLASS:
        at_least(1, rounds=asked.rounds)
        taken["rounds"] = "--rounds, before the --"
    check_rest(asked, taken)


def check_examples(asked: argparse.Namespace, told: Mapping[Cell, Mapping[str, Any]]) -> None:
    """Has every class as many examples as are asked for? Only data that lies on this disk can say so at once."""
    found = max(
        (told[c] for c in told if scorers[c.method].needs != "weights"), key=lambda s: s["per_class"], default=None
    )
    if found is None or task_of(found["model"]) is not CLASSIFICATION:
        return
    source = found["data"]
    if source != "digits" and on_disk(source, preset_of(source), found["data_revision"]) is None:
        return
    same = ("train_split", "image_column", "label_column")
    data = open_data(
        source, config=found["data_config"], revision=found["data_revision"], need_test=False,
        **{name: found[name] for name in same},
    )  # fmt: skip
    try:
        balanced(data.train.labels, found["per_class"], names=data.classes)
    except ValueError as error:
        flag = "--values" if asked.table == "data" else "--per_class"
        raise ValueError(f"{flag} {found['per_class']}: in the training images of {source}, {error}") from error


if __name__ == "__main__":
    run(lambda: sys.exit(main()))
