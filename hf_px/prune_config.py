"""PruneConfig: every choice that decides a mask, with the one set of defaults, checked in one place.

`hf_px.prune`, the command line and the recipes build it. Its fields are also the flags of `hf-px prune` and of the
recipes. torch is imported when a config is made, not before: `--help` only reads the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from .core.options import at_least, option

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .core.allocate import Schedule, Scope
    from .core.registry import Scorer, ScorerRecord

DEFAULT_SCORER = "px-path"  # model_cards/RESULTS.md supports the choice; tests/recipes/test_results.py checks it
TRAINED_SCORER = "magnitude"  # default for trained weights, with repair: model_cards/RESULTS.md
DEFAULT_SPARSITY = 0.982
DEFAULT_OF_CHANNELS = 0.5  # whole channels cost more accuracy than single weights
TRAINED_SPARSITY = 0.8  # without training, an ImageNet ResNet-50 keeps most of its accuracy up to here
DEFAULT_PER_CLASS = 10  # images per class in the pruning set: the paper's |D|
COLUMN_HELP = {  # of flags that commands and recipes share
    "image": "column of the images (default: image, img, or the only column with images)",
    "label": "column of the classes or label maps (default: label, labels, fine_label or mask, or the only candidate)",
}


@dataclass(frozen=True)
class PruneConfig:
    """Every choice that decides a mask.

    A field that is None takes a default that depends on the method, scope or network; `resolved` fills it in.
    """

    scorer: str | Scorer | None = option(
        None,
        f"the method, one of `hf-px scorers` (default: {DEFAULT_SCORER}; {TRAINED_SCORER} for trained weights)",
        type=str,
        metavar="NAME",
    )
    sparsity: float | None = option(
        None,
        f"fraction of the weights to remove (default: {DEFAULT_SPARSITY}; {TRAINED_SPARSITY} with repair; "
        f"{DEFAULT_OF_CHANNELS} of whole channels)",
        type=float,
        metavar="S",
    )
    rounds: int | None = option(
        None,
        "score and prune this many times (default: the method's own, see `hf-px scorers`; 5 with repair)",
        type=int,
        metavar="T",
    )
    scope: str | Scope = option(
        "global",
        "which weights compete: all (global), those of a layer (layer, erk), n of m (2:4: half of them stay), or whole "
        "channels (channel; channel:16 in sixteens, a width that kernels like), which `hf-px shrink` removes",
    )
    of: str = option(
        "weights",
        "with --scope channel: sparsity is the fraction of weights, or of multiply-adds (macs)",
        choices=("weights", "macs"),
    )
    schedule: str | Schedule = option("exponential", "density by round: exponential, linear or one-shot")
    norm: str | None = option(
        None,
        "statistics of normalisation layers for px-path (batch, running) and px (batch, flow, running, released) "
        "(default: batch; flow for px on segmentation models, where batch empties a branch)",
        type=str,
    )
    keep_head: bool | None = option(
        None,
        "keep all weights of the last layer, within the count: path scores may leave a class without a weight. The "
        "paper prunes it (default: keep it where that takes at most half of the weights that stay)",
        type=bool,
    )
    keep_dense: Iterable[str] = option(
        (), "names of tensors that keep all their weights, within the count", metavar="NAME"
    )
    exclude: Iterable[str] = option(
        (), "names of tensors that are not pruned and do not count, for example conv1.weight", metavar="NAME"
    )
    min_per_layer: int = option(0, "keep at least this many weights in every layer")
    seed: int = option(0, "seed of random weights, of the pruning set, of the method's draws and of the batches")

    def __post_init__(self) -> None:
        from .core.allocate import Global, PerLayer

        for name in ("keep_dense", "exclude"):
            names = getattr(self, name)
            if names is not None and not isinstance(names, Iterable):
                raise TypeError(f"`{name}` is {names!r}; expected names of tensors")
            object.__setattr__(self, name, (names,) if isinstance(names, str) else tuple(names or ()))
        record, scope = self.record, self.allocation
        _check_sparsity(self.sparsity)
        scope.check({}, self.density)
        _check_rounds(self.rounds)
        if self.schedule == "one-shot" and self.rounds not in (None, 1):
            raise ValueError(f"`schedule` one-shot has one round, not {self.rounds}; leave `rounds` out")
        self.density_schedule  # noqa: B018  an unknown name is an error
        _check_norm(self.norm, record)
        if not isinstance(self.keep_head, (bool, type(None))):
            raise ValueError(f"`keep_head` is {self.keep_head!r}; expected True, False or None")
        for name in ("min_per_layer", "seed"):
            if isinstance(value := getattr(self, name), bool) or not isinstance(value, Integral):
                raise ValueError(f"`{name}` is {value!r}; expected a non-negative integer")
        at_least(0, min_per_layer=self.min_per_layer)
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"`seed` {self.seed} is outside [0, {2**31})")
        if self.of != "weights" and not self.whole_channels:
            raise ValueError(f"`of` {self.of} goes with `scope` channel, not with {self.scope}; leave it out")
        if self.min_per_layer and self.whole_channels:
            raise ValueError(
                "`min_per_layer` does not go with `scope` channel, where each layer keeps a channel anyway"
            )
        if (self.keep_dense or self.keep_head) and not isinstance(scope, (Global, PerLayer)):
            what = "keep_dense" if self.keep_dense else "keep_head"
            raise ValueError(
                f"`{what}` does not go with `scope` {self.scope}; use `exclude`, which leaves tensors as they are"
            )

    @property
    def record(self) -> ScorerRecord:
        """The method: registered under its name, or made from a callable."""
        from . import scorers as _methods  # noqa: F401  registers every method
        from .core.registry import ScorerRecord, scorers

        if self.scorer is None or isinstance(self.scorer, str):
            return scorers[DEFAULT_SCORER if self.scorer is None else self.scorer]
        return ScorerRecord.from_callable(self.scorer)

    @property
    def allocation(self) -> Scope:
        from .core.allocate import scope

        if self.whole_channels:
            from .channels.scope import ByChannel

            return ByChannel.named(str(self.scope), self.of)
        return scope(self.scope) if isinstance(self.scope, str) else self.scope

    @property
    def whole_channels(self) -> bool:
        """True if whole channels compete, which `shrink` then removes."""
        return isinstance(self.scope, str) and self.scope.partition(":")[0] == "channel"

    @property
    def density(self) -> float:
        """The part of the weights that stays."""
        return 1.0 - self._sparsity

    @property
    def total_rounds(self) -> int:
        if self.schedule == "one-shot":
            return 1
        return self.record.rounds if self.rounds is None else self.rounds

    @property
    def density_schedule(self) -> Callable[[int, int, float], float]:
        """density after round t of T, given the final density."""
        from .core.allocate import SCHEDULES

        if not isinstance(self.schedule, str):
            return self.schedule
        if self.schedule not in SCHEDULES:
            raise ValueError(f"`schedule` {self.schedule!r} is unknown; there are {', '.join(SCHEDULES)}")
        return SCHEDULES[self.schedule]

    def resolved(self, segmentation: bool = False) -> PruneConfig:
        """The same choices with every default filled in, but for `keep_head`, which needs the model's weights."""
        if self.scorer is None:
            return replace(self, scorer=DEFAULT_SCORER).resolved(segmentation)
        record = self.record
        norm = self.norm
        if norm is None and "norm" in record.options:
            norm = (segmentation and record.segmentation_norm) or record.options["norm"].default
        return replace(self, sparsity=self._sparsity, rounds=self.total_rounds, norm=norm)

    def kept_dense(self, model: nn.Module, weights: Mapping[str, Tensor]) -> tuple[str, ...]:
        """Names of tensors that keep all their weights: `keep_dense`, and the head by the rule of `keep_head`."""
        from .core.allocate import Global, budget
        from .core.head import head_of
        from .core.text import name_list

        if unknown := sorted(set(self.keep_dense) - set(weights)):
            raise ValueError(
                f"`keep_dense`: {unknown[0]} is not a prunable tensor of this model; it has {name_list(weights)}"
            )
        head = [name for name in head_of(model) if name in weights]
        keep = self.keep_head
        if keep is None:
            stay = budget(sum(w.numel() for w in weights.values()), self.density)
            size = sum(weights[name].numel() for name in head)
            others = sum(min(self.min_per_layer, w.numel()) for name, w in weights.items() if name not in head)
            # other scopes give the head a budget of its own; what was asked for goes before a default
            keep = isinstance(self.allocation, Global) and size <= stay / 2 and size + others < stay
        elif keep and not head:
            raise ValueError(
                f"`keep_head`: {type(model).__name__} has no prunable layer for a head; name tensors with `keep_dense`"
            )
        return tuple(dict.fromkeys((*self.keep_dense, *(head if keep else ()))))

    @property
    def _sparsity(self) -> float:
        from .core.allocate import NofM

        if self.sparsity is not None:
            return float(self.sparsity)
        if self.whole_channels:
            return DEFAULT_OF_CHANNELS
        scope = self.allocation
        return 1.0 - scope.n / scope.m if isinstance(scope, NofM) else DEFAULT_SPARSITY


def _check_sparsity(sparsity: Any) -> None:
    if sparsity is None:
        return
    if isinstance(sparsity, bool) or not isinstance(sparsity, Real):
        raise TypeError(f"`sparsity` is a {type(sparsity).__name__}; expected a number in [0, 1)")
    sparsity = float(sparsity)
    if not 0 <= sparsity < 1:
        hint = f"; did you mean {sparsity / 100:g}?" if 1 < sparsity < 100 else ""
        raise ValueError(f"`sparsity` {sparsity:g} is outside [0, 1){hint}")


def _check_rounds(rounds: Any) -> None:
    if rounds is not None and (isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1):
        raise ValueError(f"`rounds` is {rounds!r}; expected a positive integer")


def _check_norm(norm: str | None, record: ScorerRecord) -> None:
    if norm is None:
        return
    if "norm" not in record.options:
        raise ValueError(f"`norm` {norm}: {record.name} has no such option; leave it out")
    known = get_args(get_type_hints(record.score).get("norm"))
    if known and norm not in known:
        raise ValueError(f"`norm` {norm} must be one of {', '.join(known)} for {record.name}")
