"""Registries: scorers and backbones, each a frozen record under a name."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from torch import Tensor

Scores = Mapping[str, Tensor]
Needs = Literal["weights", "shape", "inputs", "labels"]


# scorer(model, weights, batches, *, generator, **options) -> Scores: scores of θ ⊙ M; high scores are kept.
# A scorer is pure: it leaves the model bit for bit as it was. `weights` holds θ ⊙ M and `weights.mask` the mask; the
# dense θ is in the model. `batches` yields (inputs, labels); `batches.sum(f, like=weights)` adds f(batch) over all
# batches of all processes.
Scorer = Callable[..., Scores]

R = TypeVar("R")


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """ "did you mean px or px-path? ", or nothing if no known name is close."""
    near = difflib.get_close_matches(name, list(dict.fromkeys(known)), n=3, cutoff=cutoff)
    return f"did you mean {' or '.join(near)}? " if near else ""


class Registry(Generic[R]):
    """Records by name. An unknown name is an error that suggests the nearest ones."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._records: dict[str, R] = {}

    def add(self, name: str, record: R) -> None:
        if name in self._records:
            raise ValueError(f"two {self._kind}s are called {name}")
        self._records[name] = record

    def __getitem__(self, name: str) -> R:
        if name not in self._records:
            hint = nearest(name, self._records, cutoff=0.4)
            raise ValueError(f"unknown {self._kind} {name!r}; {hint}{'T' if hint else 't'}here are: {', '.join(self)}")
        return self._records[name]

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def get(self, name: str) -> R | None:
        return self._records.get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._records))


@dataclass(frozen=True)
class ScorerRecord:
    name: str
    score: Scorer
    summary: str  # one line: the formula
    needs: Needs  # each kind includes those before it
    rounds: int  # default number of rounds
    paper: str
    paths: bool = False  # replays the model as a sum of paths, so every operation needs a rule in hf_px/paths
    revives: bool = False  # only FORCE lets a pruned weight return
    segmentation_norm: str | None = None  # default of the option `norm` on segmentation models, if another one

    @classmethod
    def from_callable(cls, score: Scorer) -> ScorerRecord:
        """A function of the user's own, with one round and no requirements."""
        if not callable(score):
            raise TypeError(f"`scorer` is a {type(score).__name__}; expected a name from list_scorers() or a callable")
        name = getattr(score, "__name__", type(score).__name__)
        return cls(name, functools.partial(score), "", "weights", 1, "")

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The method's own keyword arguments, which `prune(..., **options)` may set."""
        own = list(inspect.signature(self.score).parameters.values())[4:]
        return {p.name: p for p in own if p.kind is p.KEYWORD_ONLY}


scorers: Registry[ScorerRecord] = Registry("scorer")


def scorer(
    name: str, *, summary: str, needs: Needs, rounds: int, paper: str, **more: Any
) -> Callable[[Scorer], Scorer]:
    """Register a scoring function under a name; `more` are the other fields of ScorerRecord."""

    def register(score: Scorer) -> Scorer:
        scorers.add(name, ScorerRecord(name, score, summary, needs, rounds, paper, **more))
        return score

    return register
