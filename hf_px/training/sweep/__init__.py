"""Sweeps: methods x values x seeds, each cell run once; CSV, table and figure of all.

Imports training and what lies below it.
"""

from .cells import PER_CLASS, ROUNDS, SPARSITY, Cell, SweepAxis, single_shot
from .directory import Sweep
from .figure import as_figure
from .rows import as_csv
from .table import as_table

__all__ = [
    "PER_CLASS",
    "ROUNDS",
    "SPARSITY",
    "Cell",
    "Sweep",
    "SweepAxis",
    "as_csv",
    "as_figure",
    "as_table",
    "single_shot",
]
