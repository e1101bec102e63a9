"""Methods x sparsities x seeds: one run of a recipe for each, then a CSV, a table and a figure of all.

    python recipes/sweep.py --config recipes/configs/cifar10-resnet20.yaml --methods px snip magnitude random \\
            --sparsities 0.36 0.5904 0.738 0.8322 0.893 0.9312 0.956 0.9717 0.982 --seeds 0 1 2 --output-dir out/sweep
        a figure of the paper; imp is a method too (recipes/imp.py), and px:running is px with --norm running
    python recipes/sweep.py ... --dry-run
        list the cells and their state
    python recipes/sweep.py ... -- --epochs 20 --keep-head true
        flags behind -- go to every cell: any flag of recipes/prune_finetune.py or imp.py

Run it again after a crash: finished cells are skipped, unfinished ones continue. Run it again with more methods or
seeds, and they join the table. Run it twice at the same time, for example on two GPUs, and the two share the work.

After every cell the output directory holds results.csv with a line per cell, table.md, and the figure accuracy.svg or
mean_iou.svg. cells/ holds the runs with their tickets, logs/ what they printed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hf_px.core.options import HelpFormatter, renamed_arguments
from hf_px.prune_config import DEFAULT_SCORER, DEFAULT_SPARSITY, PruneConfig
from hf_px.training.command_line import parse_options, run_recipe
from hf_px.training.sweep import Cell, Sweep
from hf_px.training.sweep.cells import check_method
from hf_px.training.sweep.runner import RESERVED, add_common_flags, cell_flags, check_common, parse_sweep, run_cells


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="sweep.py", description=__doc__, formatter_class=HelpFormatter, allow_abbrev=False
    )
    methods = f"of `hf-px scorers`, such as px:running, or imp (default: the config's, or {DEFAULT_SCORER})"
    parser.add_argument("--methods", nargs="+", default=[], metavar="NAME", help=methods)
    sparsities = f"in [0, 1) (default: {DEFAULT_SPARSITY})"
    parser.add_argument("--sparsities", nargs="+", type=float, default=[DEFAULT_SPARSITY], metavar="S", help=sparsities)
    add_common_flags(parser, "out/sweep")
    args = parse_sweep(parser, sys.argv[1:])
    args.methods = args.methods or [configured_method(args.config)]
    for method in args.methods:
        check_method(method)
    for sparsity in args.sparsities:
        with renamed_arguments(sparsity="sparsities"):
            PruneConfig(sparsity=sparsity)
    check_common(args, RESERVED)
    # seeds outermost: the whole figure of the first seed is there soon, and all cells of a seed share a dense twin
    cells = [Cell(m, s, seed) for seed in args.seeds for s in args.sparsities for m in args.methods]
    sweep = Sweep(args.output_dir.expanduser())
    recipes = Path(__file__).resolve().parent
    return run_cells(args, recipes, sweep, list(dict.fromkeys(cells)), lambda cell: cell_flags(args, cell))


def configured_method(config: str | None) -> str:
    """The method that a config file names."""
    return parse_options("prune_finetune", "", ["--config", config] if config else []).method


if __name__ == "__main__":
    run_recipe(lambda: sys.exit(main()))
