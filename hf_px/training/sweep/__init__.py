"""Methods x values x seeds: cells that are run once each, and what comes out of them all."""

from .cells import PER_CLASS, ROUNDS, SPARSITY, Axis, Cell, parts_of, single_shot
from .directory import Sweep
from .figure import as_figure, check_figures
from .rows import as_csv
from .table import as_table

__all__ = [
    "PER_CLASS",
    "ROUNDS",
    "SPARSITY",
    "Axis",
    "Cell",
    "Sweep",
    "as_csv",
    "as_figure",
    "as_table",
    "check_figures",
    "parts_of",
    "single_shot",
]
