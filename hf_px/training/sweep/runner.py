"""Run the cells of a sweep or an ablation one after the other, each as a launch of its recipe."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ...core.options import at_least, hyphenated
from ...data import check_source
from ...models.load import check_name
from ..command_line import option_names, parse_options
from .cells import Cell
from .directory import Sweep

Flags = Callable[[Cell], Sequence[str]]
# options of a recipe that the sweep sets itself, and what to use instead
RESERVED = {
    "scorer": "--methods", "sparsity": "--sparsities", "seed": "--seeds", "output_dir": "--output-dir",
    "config": "--config, before the --", "resume": "nothing: a sweep always does", "overwrite": "another --output-dir",
    "push_to_hub": "hf-px push, with the cell you choose",
}  # fmt: skip


def add_common_flags(parser: argparse.ArgumentParser, output_dir: str) -> None:
    """The flags that sweeps and ablations share."""
    add = parser.add_argument
    add("--config", metavar="FILE", help="a yaml file of options of prune_finetune.py, for every cell")
    add("--seeds", nargs="*", type=int, default=[0], metavar="SEED", help="(default: 0)")
    add("--output-dir", type=Path, default=Path(output_dir), metavar="DIR", help=f"(default: {output_dir})")
    add("--processes", type=int, metavar="N", help="processes of each cell (default: the setting of accelerate launch)")
    add("--dry-run", action="store_true", help="list the cells and their state, and run none")


def parse_sweep(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """The flags before `--`; those behind it go to every cell and are `rest`."""
    end = list(argv).index("--") if "--" in argv else len(argv)
    args, unknown = parser.parse_known_args(hyphenated(argv[:end]))
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}; flags of the recipe go after --")
    args.rest = hyphenated(argv[end + 1 :])
    return args


def run_cells(args: argparse.Namespace, recipes: Path, sweep: Sweep, cells: Sequence[Cell], flags: Flags) -> int:
    """Run the cells that are not done, or list them with --dry-run; returns the exit code."""
    sweep.check(cells, lambda cell: cell_settings(args, cell, flags(cell)))
    if args.dry_run:
        print(*(f"{cell.name:32} {sweep.state(cell)}" for cell in cells), sep="\n")
        return 0
    sweep.write(args.methods)
    todo = [cell for cell in cells if not sweep.done(cell)]
    failed: dict[Cell, int] = {}
    with tqdm(total=len(cells), initial=len(cells) - len(todo), unit="cell") as bar:
        while todo:
            cell = todo.pop(0)
            bar.set_description(cell.name)
            child = sweep.start(cell, _launch(args, recipes, sweep, cell, flags(cell)))
            code = _wait(child, bar) if child else 0
            if child is None and not sweep.done(cell):
                todo.append(cell)  # another sweep runs it, or a killed one has left it running: others first
                time.sleep(0.5)
                continue
            if not sweep.done(cell):
                failed[cell] = code
            sweep.write(args.methods)
            bar.update()
    _print_outcome(sweep, cells, failed)
    return 1 if failed else 0


def cell_flags(args: argparse.Namespace, cell: Cell) -> list[str]:
    """The flags of a cell. One that only the other recipe has, such as --rewind, goes to that recipe's cells only."""
    recipes = {Cell(method, 0, 0).recipe for method in args.methods} | {cell.recipe}
    known = {recipe: set(option_names(recipe)) for recipe in recipes}
    words = ["--config", args.config] if args.config else []
    for group in _with_values(args.rest):
        name = _option_name(group)
        elsewhere = any(name in names for names in known.values())
        if name in known[cell.recipe] or not elsewhere:  # an unknown flag is refused by the recipe's own parser
            words += group
    return [*words, *cell.flags]


def cell_settings(args: argparse.Namespace, cell: Cell, flags: Sequence[str]) -> dict[str, Any]:
    """The settings that a cell will have, as its recipe parses them; None where only the run itself can tell."""
    options = parse_options(cell.recipe, "", flags)
    model = options.model
    check_name(model.model, pretrained=model.pretrained, architecture=model.architecture)
    check_source(options.data.data)
    rounds = options.pruning.total_rounds
    return {**options.settings(), "rounds": rounds, "processes": args.processes}


def check_common(args: argparse.Namespace, reserved: Mapping[str, str]) -> None:
    """Refuse wrong seeds and processes, and flags behind `--` that the sweep sets itself."""
    if not args.seeds:
        raise ValueError("`seeds`: give at least one, such as --seeds 0 1 2")
    at_least(0, seeds=min(args.seeds))
    at_least(1, processes=args.processes)
    for group in _with_values(args.rest):
        if (name := _option_name(group)) in reserved:
            raise ValueError(f"{group[0].partition('=')[0]} after --: set for each cell already; use {reserved[name]}")


def _launch(args: argparse.Namespace, recipes: Path, sweep: Sweep, cell: Cell, flags: Sequence[str]) -> list[str]:
    # --quiet: the last line of an error is then the recipe's
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--quiet"]
    if args.processes:
        launch += ["--num_processes", str(args.processes)]
    if (args.processes or 1) > 1:  # its own port, since two sweeps may share a machine
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            launch += ["--multi_gpu", "--main_process_port", str(probe.getsockname()[1])]
    return [*launch, str(recipes / f"{cell.recipe}.py"), *flags, "--output-dir", str(sweep.path(cell))]


def _wait(child: subprocess.Popen[bytes], bar: tqdm) -> int:
    """The child's exit code; the clock of the bar keeps running on a terminal."""
    while True:
        try:
            return child.wait(timeout=1)
        except subprocess.TimeoutExpired:
            if sys.stderr.isatty():
                bar.refresh()
        except KeyboardInterrupt:  # the child got it too
            child.wait()
            print("\ninterrupted; the same command continues from here", file=sys.stderr)
            sys.exit(130)


def _print_outcome(sweep: Sweep, cells: Sequence[Cell], failed: Mapping[Cell, int]) -> None:
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


def _with_values(words: Sequence[str]) -> list[list[str]]:
    """Each flag with its values."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            groups.append([word])
        elif not groups:
            raise ValueError(f"{word!r} after --: expected a flag of prune_finetune.py, such as --epochs 20")
        else:
            groups[-1].append(word)
    return groups


def _option_name(group: Sequence[str]) -> str:
    return group[0].removeprefix("--").partition("=")[0].replace("-", "_")
