"""A cell: one run of a sweep, given by a method, a value on the sweep's axis and a seed.

The axis is sparsity, the number of rounds or the number of examples per class.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core.options import name_flags
from ...prune_config import PruneConfig
from ...pruning import scorers
from ..command_line import RecipeName

NO_PATH = "no path from input to output is left"  # the log of a cell whose mask collapsed ends with this


@dataclass(frozen=True)
class SweepAxis:
    """The setting that differs between the columns of the table."""

    key: str  # in the settings and in the CSV
    prefix: str  # before the value, in the name of a cell and of a column
    description: str  # in the table
    label: str  # in the figure
    ablation: bool = True  # one of the paper's ablations: methods in two groups, overlap of masks, collapse is a result
    timed: bool = False  # show the seconds of pruning

    def column(self, value: float) -> str:
        return percent_of(value) if self.key == "sparsity" else f"{self.prefix} = {value}"

    def place(self, value: float) -> float:
        """The value's place on the figure's log axis."""
        return 1 - value if self.key == "sparsity" else value

    @property
    def varying_settings(self) -> set[str]:
        """Settings in which the cells of one table may differ; every method has its own default of rounds."""
        return {"scorer", "norm", "seed", "rounds", self.key}


SPARSITY = SweepAxis("sparsity", "", "by the fraction of weights removed", "weights removed", ablation=False)
ROUNDS = SweepAxis("rounds", "T", "by the number of pruning rounds T", "pruning rounds T", timed=True)
PER_CLASS = SweepAxis(
    "per_class", "D", "by the number D of examples per class in the pruning set", "examples per class |D|"
)


@dataclass(frozen=True)
class Cell:
    method: str  # a scorer, with a norm if another than the default: px:running; or imp
    value: float
    seed: int
    axis: SweepAxis = SPARSITY

    @property
    def name(self) -> str:
        # no colon: Windows does not allow it in file names
        return f"{self.method.replace(':', '-')}-{self.axis.prefix}{self.value!r}-s{self.seed}"

    @property
    def flags(self) -> list[str]:
        """The flags of its recipe that make it this cell."""
        scorer, norm = scorer_and_norm(self.method)
        words = [] if self.recipe == "imp" else ["--scorer", scorer, *(["--norm", norm] if norm else [])]
        return [*words, f"--{self.axis.key.replace('_', '-')}", repr(self.value), "--seed", str(self.seed)]

    @property
    def recipe(self) -> RecipeName:
        return "imp" if self.method == "imp" else "prune_finetune"


def scorer_and_norm(method: str) -> tuple[str, str | None]:
    """px:running is (px, running), px is (px, None)."""
    scorer, _, norm = method.partition(":")
    return scorer, norm or None


def check_method(method: str) -> None:
    """An error for an unknown scorer, or a norm that it does not have."""
    if method != "imp":
        scorer, norm = scorer_and_norm(method)
        try:
            PruneConfig(scorer, norm=norm)
        except ValueError as error:
            raise ValueError(f"`methods` {method}: {name_flags(str(error), {})}") from error


def single_shot(method: str) -> bool:
    """True if the scorer defaults to one round. IMP is not a scorer."""
    record = scorers.get(scorer_and_norm(method)[0])
    return record is not None and record.rounds == 1


def percent_of(sparsity: float) -> str:
    return f"{100 * sparsity:.6g} %"
