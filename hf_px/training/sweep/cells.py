"""A cell: a method, a value on the sweep's axis, a seed; sparsity, rounds or examples per class are the axis."""

from __future__ import annotations

from dataclasses import dataclass

from ...pruning import scorers

NO_PATH = "no path from input to output is left"  # how a cell's log says that its method has emptied a layer


@dataclass(frozen=True)
class Axis:
    """What the columns of the table are: the setting that differs between them, and how it is said."""

    key: str  # of the settings, and of the CSV
    mark: str  # before the value, in the name of a cell
    head: str  # of a column, around the value
    said: str  # in the table
    label: str  # in the figure
    ablation: bool = True  # a paper's table: methods in two groups, how far masks agree, collapse is an outcome
    timed: bool = False  # with the seconds of the pruning

    def column(self, value: float) -> str:
        return percent(value) if self.key == "sparsity" else self.head.format(value)

    def place(self, value: float) -> float:
        """On the figure's log axis."""
        return 1 - value if self.key == "sparsity" else value

    @property
    def of_a_cell(self) -> set[str]:
        """Settings in which the cells of one table may differ; a method has rounds of its own."""
        return {"scorer", "norm", "seed", "rounds", self.key}


SPARSITY = Axis("sparsity", "", "", "by the part of the weights that was removed", "weights removed", ablation=False)
ROUNDS = Axis("rounds", "T", "T = {}", "by the number of pruning rounds T", "pruning rounds T", timed=True)
PER_CLASS = Axis(
    "per_class", "D", "D = {}", "by the number D of examples per class to prune by", "examples per class |D|"
)


@dataclass(frozen=True)
class Cell:
    method: str  # a scorer, or with one of its norms, as px:running
    value: float  # on the axis
    seed: int
    axis: Axis = SPARSITY

    @property
    def name(self) -> str:
        return f"{self.method.replace(':', '-')}-{self.axis.mark}{self.value!r}-s{self.seed}"  # Windows has no colons

    @property
    def flags(self) -> list[str]:
        """What makes it this cell, for its recipe."""
        scorer, norm = parts_of(self.method)
        words = ["--scorer", scorer, *(["--norm", norm] if norm else [])]
        return [*words, f"--{self.axis.key}", repr(self.value), "--seed", str(self.seed)]

    @property
    def kind(self) -> str:
        """The recipe that runs it."""
        return "imp" if self.method == "imp" else "prune_finetune"


def parts_of(method: str) -> tuple[str, str | None]:
    """Scorer and norm: px:running is (px, running), px is (px, None)."""
    scorer, _, norm = method.partition(":")
    return scorer, norm or None


def single_shot(method: str) -> bool:
    """It scores once, in its authors' words; imp is none, and no scorer."""
    record = scorers.get(parts_of(method)[0])
    return record is not None and record.rounds == 1


def percent(sparsity: float) -> str:
    return f"{100 * sparsity:.6g} %"
