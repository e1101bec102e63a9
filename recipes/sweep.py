"""Methods x sparsities x seeds: one run of a recipe for each, then a CSV, a table and a figure of them all.

    python recipes/sweep.py --config recipes/configs/cifar10-resnet20.yaml --methods px snip magnitude random \\
            --sparsities 0.36 0.5904 0.738 0.8322 0.893 0.9312 0.956 0.9717 0.982 --seeds 0 1 2 --output_dir out/sweep
        a figure of the paper; imp is a method too (recipes/imp.py), and px:running is px with --norm running
    python recipes/sweep.py ... --dry_run
        lists the cells, and which are done
    python recipes/sweep.py ... -- --epochs 20 --keep_head true
        what follows -- goes to every cell: any flag of recipes/prune_finetune.py, or of imp.py

Run it again after a crash: what is finished stays as it is, what was begun goes on where it was. Run it again with
more methods or seeds, and they join the table. Run it twice at the same time, on two GPUs say, and they share the work.

In the output directory, after every cell: results.csv, one line a cell; table.md; and a figure, accuracy or
mean_iou, as .svg and .png. cells/ holds the runs with their tickets, logs/ what they printed.
"""

from __future__ import annotations

import argparse
import importlib.util
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tqdm.auto import tqdm

from hf_px.core.allocate import scope
from hf_px.core.default import DEFAULT
from hf_px.core.registry import nearest, norm_option, scorers
from hf_px.data import check_source
from hf_px.models.load import check_name
from hf_px.pruning import checked_schedule, checked_sparsity, list_scorers
from hf_px.training.config import at_least, parse, run, settings_of
from hf_px.training.sweep import Cell, Sweep, check_figures, parts_of

RECIPES = Path(__file__).resolve().parent
# a cell's own, and what the sweep sees to itself
TAKEN = {
    "scorer": "--methods", "sparsity": "--sparsities", "seed": "--seeds", "output_dir": "--output_dir",
    "config": "--config, before the --", "resume": "nothing: a sweep always does", "overwrite": "another --output_dir",
    "push_to_hub": "hf-px push, with the cell you choose",
}  # fmt: skip


def knobs(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="sweep.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--config", metavar="FILE", help="a yaml file of prune_finetune's options, for every cell")
    add(
        "--methods", nargs="+", default=[], metavar="NAME",
        help=f"of `hf-px scorers`, as px:running, or imp (default: the config's, or {DEFAULT})",
    )  # fmt: skip
    add("--sparsities", nargs="+", type=float, default=[0.982], metavar="S", help="in [0, 1) (default: 0.982)")
    add("--seeds", nargs="*", type=int, default=[0], metavar="SEED", help="(default: 0)")
    add("--output_dir", type=Path, default=Path("out/sweep"), metavar="DIR", help="(default: out/sweep)")
    add("--processes", type=int, metavar="N", help="of each cell, for accelerate launch (default: what it says)")
    add("--dry_run", action="store_true", help="list the cells and how far they are, and run none")
    return parsed(parser, argv)


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """What stands before --; what follows it, for every cell, is `rest`."""
    here = list(argv).index("--") if "--" in argv else len(argv)
    asked, odd = parser.parse_known_args(argv[:here])
    if odd:
        parser.error(f"unrecognized arguments: {' '.join(odd)}; flags of the recipe go after --")
    asked.rest = list(argv[here + 1 :])
    return asked


def main() -> int:
    asked = knobs(sys.argv[1:])
    asked.methods = asked.methods or [named(asked.config)]
    check(asked)
    # seeds outermost: the first seed's whole figure is there soon, and all cells of a seed share one dense twin
    cells = [Cell(m, s, seed) for seed in asked.seeds for s in asked.sparsities for m in asked.methods]
    cells = list(dict.fromkeys(cells))
    return work(asked, Sweep(asked.output_dir.expanduser()), cells, lambda cell: flags(asked, cell))


def named(config: str | None) -> str:
    """The method that a config names."""
    return parse(kinds(module("prune_finetune")), "", ["--config", config] if config else [])[2].scorer


def work(asked: argparse.Namespace, sweep: Sweep, cells: Sequence[Cell], words: Callable[[Cell], Sequence[str]]) -> int:
    """Run, or with --dry_run list, the cells with these flags each; the exit code. recipes/ablate.py does so too."""
    sweep.check(cells, lambda cell: settings(asked, cell, words(cell)))
    if asked.dry_run:
        print(*(f"{cell.name:32} {sweep.state(cell)}" for cell in cells), sep="\n")
        return 0
    sweep.write(asked.methods)
    todo = [cell for cell in cells if not sweep.done(cell)]
    failed: dict[Cell, int] = {}
    with tqdm(total=len(cells), initial=len(cells) - len(todo), unit="cell") as bar:
        while todo:
            cell = todo.pop(0)
            bar.set_description(cell.name)
            child = sweep.start(cell, command(asked, sweep, cell, words(cell)))
            code = wait(child, bar) if child else 0
            if child is None and not sweep.done(cell):
                todo.append(cell)  # another sweep runs it, or one that was killed has left it running: others first
                time.sleep(0.5)
                continue
            if not sweep.done(cell):
                failed[cell] = code
            sweep.write(asked.methods)
            bar.update()
    tell(sweep, cells, failed)
    return 1 if failed else 0


def wait(child: subprocess.Popen[bytes], bar: tqdm) -> int:
    """The child's exit code; on a terminal the bar's clock goes on meanwhile."""
    while True:
        try:
            return child.wait(timeout=1)
        except subprocess.TimeoutExpired:
            if sys.stderr.isatty():
                bar.refresh()
        except KeyboardInterrupt:  # the child got it too
            child.wait()
            print("\ninterrupted; the same command goes on from here", file=sys.stderr)
            sys.exit(130)


def tell(sweep: Sweep, cells: Sequence[Cell], failed: Mapping[Cell, int]) -> None:
    for cell, code in failed.items():
        print(f"\n{cell.name} failed with exit code {code}; {sweep.log(cell)} ends with", file=sys.stderr)
        print(*(f"    {line}" for line in sweep.last_lines(cell)), sep="\n", file=sys.stderr)
    if failed:
        print(f"\n{len(failed)} of {len(cells)} cells failed; the same command tries them again", file=sys.stderr)
    for cell in cells:
        if sweep.collapsed(cell):
            print(f"{cell.name} collapsed: its mask left no path from input to output; the table says so")
    if any(sweep.finished(cell) for cell in cells):
        print(f"wrote {sweep.directory}: results.csv, table.md and the figure")


def command(asked: argparse.Namespace, sweep: Sweep, cell: Cell, words: Sequence[str]) -> list[str]:
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--quiet"]  # an error's last line is the recipe's
    if asked.processes:
        launch += ["--num_processes", str(asked.processes)]
    if (asked.processes or 1) > 1:  # a port of its own: two sweeps may share a machine
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            launch += ["--multi_gpu", "--main_process_port", str(probe.getsockname()[1])]
    return [*launch, str(RECIPES / f"{cell.kind}.py"), *words, "--output_dir", str(sweep.path(cell))]


def flags(asked: argparse.Namespace, cell: Cell) -> list[str]:
    """A cell's flags. One that only the other recipe knows, --rewind say, goes to the cells of that one only."""
    known = {kind: set(fields_of(kind)) for kind in {Cell(m, 0, 0).kind for m in asked.methods} | {cell.kind}}
    words = ["--config", asked.config] if asked.config else []
    for group in groups(asked.rest):
        name = flag(group)
        if name in known[cell.kind] or not any(name in names for names in known.values()):  # the parser refuses these
            words += group
    return [*words, *cell.flags]


def groups(words: Sequence[str]) -> list[list[str]]:
    """Each flag with its values."""
    found: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            found.append([word])
        elif not found:
            raise ValueError(f"{word!r} after --: expected a flag of prune_finetune, such as --epochs 20")
        else:
            found[-1].append(word)
    return found


def flag(group: Sequence[str]) -> str:
    return group[0].removeprefix("--").partition("=")[0]


# before any work


def check(asked: argparse.Namespace) -> None:
    """Refuse what can be refused at once."""
    known = [*list_scorers(), "imp"]
    for method in asked.methods:
        scorer, norm = parts_of(method)
        if scorer in scorers:
            norm_option(scorers[scorer], norm)
        elif method not in known:
            raise ValueError(f"--methods {method}: unknown; {nearest(method, known, 0.4)}There are: {', '.join(known)}")
    for sparsity in asked.sparsities:
        checked_sparsity(sparsity, scope("global"))
    check_rest(asked, TAKEN)


def check_rest(asked: argparse.Namespace, taken: Mapping[str, str]) -> None:
    """Seeds, processes, and the flags after the --; the same for every table."""
    if not asked.seeds:
        raise ValueError("--seeds: there is none; give at least one, such as --seeds 0 1 2")
    at_least(0, seeds=min(asked.seeds))
    at_least(1, processes=asked.processes)
    for group in groups(asked.rest):
        if flag(group) in taken:
            raise ValueError(f"--{flag(group)} after --: set for each cell already; use {taken[flag(group)]}")
    if not asked.dry_run:
        check_figures()


def settings(asked: argparse.Namespace, cell: Cell, words: Sequence[str]) -> dict[str, Any]:
    """The settings that a cell will have, as its recipe reads them; what only shows when it runs is None."""
    recipe = module(cell.kind)
    found = parse(kinds(recipe), "", words)
    backbone, examples, pruning, training, _ = found
    check_name(backbone.model, pretrained=backbone.pretrained, architecture=backbone.architecture)
    check_source(examples.data)
    if cell.kind == "imp":
        recipe.check(pruning, training)
    else:
        record = scorers[pruning.scorer]
        scope(pruning.scope).check({}, 1 - pruning.sparsity)
        _, pruning.rounds = checked_schedule(pruning.schedule, pruning.rounds, record)
    return {**settings_of(*found), "processes": asked.processes}


def kinds(recipe: ModuleType) -> tuple[Any, ...]:
    return recipe.Backbone, recipe.Examples, recipe.Pruning, recipe.Training, recipe.Output


def fields_of(kind: str) -> list[str]:
    return [field.name for knobs in kinds(module(kind)) for field in fields(knobs)]


@cache
def module(kind: str) -> ModuleType:
    """A recipe by its file: on Python before 3.12, `import imp` may find another module of that name."""
    spec = importlib.util.spec_from_file_location(f"recipes_{kind}", RECIPES / f"{kind}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # dataclasses look themselves up there
    spec.loader.exec_module(found)
    return found


if __name__ == "__main__":
    run(lambda: sys.exit(main()))
