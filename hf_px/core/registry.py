"""Frozen records by name, each with a one-line description."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, TypeVar, get_args, get_type_hints

from torch import Tensor

Scores = Mapping[str, Tensor]
Needs = Literal["weights", "shape", "inputs", "labels"]


# scorer(model, weights, batches, *, generator, **options) -> Scores: scores of θ ⊙ M, high is kept. Pure: the model
# comes out bit for bit as it went in. `weights` holds the masked weights, `weights.mask` the mask; dense θ is in the
# model. `batches` yields (inputs, labels); `batches.sum(f, like=weights)` adds f(batch) up over all batches of all
# processes.
Scorer = Callable[..., Scores]

R = TypeVar("R")


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """ "did you mean px or px_path? ", or nothing."""
    near = difflib.get_close_matches(name, list(dict.fromkeys(known)), n=3, cutoff=cutoff)
    return f"did you mean {' or '.join(near)}? " if near else ""


class Registry(Generic[R]):
    """Names to records; an unknown name is an error that shows the nearest ones."""

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
            raise ValueError(f"unknown {self._kind} {name!r}; {hint}There are: {', '.join(self)}")
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
    needs: Needs  # each one includes those before it
    rounds: int  # the method's own default
    paper: str
    paths: bool = False  # runs the model as its paths, so every operation must have a rule
    revives: bool = False  # only FORCE lets a pruned weight return

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """What `prune(..., **options)` may set for this method."""
        own = list(inspect.signature(self.score).parameters.values())[4:]
        return {p.name: p for p in own if p.kind is p.KEYWORD_ONLY}


scorers: Registry[ScorerRecord] = Registry("scorer")


def norm_option(record: ScorerRecord, norm: str | None) -> dict[str, Any]:
    """{"norm": …} for a method that has it, the method's own default if none is asked for."""
    if "norm" not in record.options:
        if norm is not None:
            raise ValueError(f"--norm {norm}: {record.name} has no such option; leave it out")
        return {}
    known = get_args(get_type_hints(record.score)["norm"])
    if norm is not None and known and norm not in known:
        raise ValueError(f"--norm {norm}: {record.name} knows {', '.join(known)}")
    return {"norm": record.options["norm"].default if norm is None else norm}


def scorer(
    name: str, *, summary: str, needs: Needs, rounds: int, paper: str, paths: bool = False, revives: bool = False
) -> Callable[[Scorer], Scorer]:
    """Register a scoring function under a name; the sweeps in tests/laws find it from here."""

    def register(score: Scorer) -> Scorer:
        scorers.add(name, ScorerRecord(name, score, summary, needs, rounds, paper, paths, revives))
        return score

    return register


@dataclass(frozen=True)
class Images:
    """The images that a model was made for, in timm's words."""

    input_size: tuple[int, int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bilinear"
    crop_pct: float = 0.875
    crop_mode: str = "center"

    def config(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class BackboneRecord:
    name: str
    summary: str  # one line
    source: str | None  # a Hub id or an address; None: weights are drawn at random
    architecture: str  # timm's name
    license: str | None  # of the weights, as the Hub spells it
    images: Images
    citation: str
    convert: Callable[..., Any] | None = None  # for checkpoints in words of their own


backbones: Registry[BackboneRecord] = Registry("backbone")
