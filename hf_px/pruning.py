"""The rounds: for t in 1..T, score θ ⊙ M, keep the best d(t) of it: M ← M & allocate(S(θ ⊙ M), d(t)).

On one process or many: batches are shared out whole, signed scores are summed, the mask comes from rank 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from tqdm.auto import tqdm

from . import scorers as _scorers  # noqa: F401  registers every method
from .core.allocate import SCHEDULES, Global, NofM, Scope, budget
from .core.allocate import scope as named_scope
from .core.batches import Batches
from .core.default import DEFAULT
from .core.errors import DisagreementError, NonFiniteScoreError
from .core.forward import input_shape
from .core.mask import Mask, MaskedWeights
from .core.prunable import check_weights, finite, prunable
from .core.registry import Scorer, ScorerRecord, Scores, scorers
from .paths import check_visible
from .paths.collapse import check_alive, check_signal, tell_lost


def list_scorers() -> list[str]:
    """The names that `score` and `prune` know."""
    return list(scorers)


def score(
    model: nn.Module,
    scorer: str | Scorer,
    batches: Iterable[Any] | None = None,
    *,
    mask: Mask | None = None,
    round: int = 1,
    seed: int = 0,
    exclude: Iterable[str] = (),
    input_size: Sequence[int] | None = None,
    accelerator: Any = None,
    **options: Any,
) -> dict[str, Tensor]:
    """One round of a method on the model as it is: {state_dict name: scores}, high is worth keeping.

    With a mask, of θ ⊙ M, as a later round sees it; `round` is its number, for methods that draw at random.
    """
    record = _record(scorer, options)
    with _placed(model, accelerator) as (model, device):
        mask = Mask.ones(prunable(model, exclude)) if mask is None else mask
        data = _data(model, record, batches, input_size, device)
        return _one_round(model, record, mask.weights(model), data, _generator(seed, round), options, mask.density)


def prune(
    model: nn.Module,
    scorer: str | Scorer = DEFAULT,
    *,
    sparsity: float | None = None,
    batches: Iterable[Any] | None = None,
    rounds: int | None = None,
    scope: str | Scope = "global",
    schedule: str | Callable[[int, int, float], float] = "exponential",
    seed: int = 0,
    progress: bool = True,
    min_per_layer: int = 0,
    exclude: Iterable[str] = (),
    whole: Iterable[str] = (),
    input_size: Sequence[int] | None = None,
    accelerator: Any = None,
    done: tuple[int, Mask] | None = None,
    on_round: Callable[[int, Mask], None] | None = None,
    **options: Any,
) -> Mask:
    """The mask that keeps round((1 - sparsity) · n) of the model's n prunable weights; the model stays as it was.

    model          any torch module; timm and transformers vision models as they are
    scorer         a name from list_scorers(), or a callable like them (hf_px.core.registry.Scorer)
    sparsity       the part of the weights to remove, in [0, 1); with an n:m scope it follows from n and m
    batches        a list or loader of (inputs, labels), of dicts as transformers makes them, or of bare inputs;
                   None for methods that need no data. With several processes: the same batches on each
    rounds         how often to score; None: the method's own default
    scope          "global", "layer", "erk", or "n:m" along the input dimension, for example "2:4"
    schedule       "exponential", "linear" or "one-shot"
    min_per_layer  no tensor keeps fewer weights than this
    exclude        names of tensors that stay dense; they do not count
    whole          names of tensors that keep all their weights, which do count; for scope "global". A small head is
                   worth it: path scores may leave a class without a single weight
    input_size     shape of one input, where neither batches nor the model tell it
    accelerator    an accelerate.Accelerator: score on its device
    on_round       called with (t, mask) after each round; `done`, such a pair, goes on after round t of an earlier
                   call with the same arguments, and ends with the same mask
    options        the method's own, for example norm="running" for px
    """
    record = _record(scorer, options)
    where = named_scope(scope) if isinstance(scope, str) else scope
    density = 1.0 - checked_sparsity(sparsity, where)
    law, rounds = checked_schedule(schedule, rounds, record)
    with _placed(model, accelerator) as (model, device):
        weights = prunable(model, exclude)
        whole = _checked_whole(whole, weights, where)
        _check_budget(weights, density, min_per_layer, whole)
        where.check({name: w.shape for name, w in weights.items()}, density)
        data = _data(model, record, batches, input_size, device)
        full = Mask.ones(weights)
        last, mask = (0, full) if done is None else _checked_done(done, rounds, full)
        memory = None
        with _bar(rounds, progress, data, last) as bar:
            for t in range(last + 1, rounds + 1):
                memory = mask.weights(model, reuse=memory)
                scores = _one_round(model, record, memory, data, _generator(seed, t), options, density)
                if t == 1:
                    check_signal(record, scores)
                scores |= {name: torch.full_like(scores[name], torch.inf) for name in whole}
                within = full if record.revives else mask
                mask = _agreed(where(scores, law(t, rounds, density), within, min_per_layer))
                bar(mask)
                if on_round is not None:
                    on_round(t, mask)
        tell_lost(mask, check_alive(model, mask, data), record.name)
        return mask


def _one_round(
    model: nn.Module,
    record: ScorerRecord,
    weights: MaskedWeights,
    data: Batches | None,
    generator: torch.Generator,
    options: Mapping[str, Any],
    density: float | None = None,
) -> dict[str, Tensor]:
    known = record.options
    extra = {"density": density} if "density" in known and density is not None else {}
    # a callable may draw from the global generator: what it draws must not be missed by the user's own code
    with torch.random.fork_rng(devices=_cuda_devices(model)):
        torch.manual_seed(generator.initial_seed())
        found = record.score(model, weights, data, generator=generator, **{**extra, **options})
    return _checked_scores(record, found, weights.mask)


def _checked_scores(record: ScorerRecord, found: Scores, mask: Mask) -> dict[str, Tensor]:
    missing = sorted(set(mask.bits) - set(found))
    if missing:
        raise ValueError(f"scorer {record.name} returned no score for {missing[0]}")
    scores = {}
    for name, bits in mask.bits.items():
        s = found[name].detach()
        if s.shape != bits.shape:
            raise ValueError(f"scorer {record.name}: {name} has shape {tuple(bits.shape)}, its score {tuple(s.shape)}")
        if not finite(s):
            raise NonFiniteScoreError(
                f"scorer {record.name}: the scores of {name} hold inf or nan; look for exploding activations or a loss "
                "that is nan on these batches, score in float64 (model.double()), or take another scorer"
            )
        scores[name] = s
    return scores


# before work starts


def _record(scorer: str | Scorer, options: Mapping[str, Any]) -> ScorerRecord:
    if isinstance(scorer, str):
        record = scorers[scorer]
        unknown = sorted(set(options) - set(record.options) | set(options) & {"density"})
        if unknown:
            takes = ", ".join(sorted(set(record.options) - {"density"})) or "none"
            raise TypeError(f"{unknown[0]} is not an option of prune or of scorer {record.name} (its own: {takes})")
        return record
    if not callable(scorer):
        raise TypeError(f"scorer is a {type(scorer).__name__}; expected a name from list_scorers() or a callable")
    name = getattr(scorer, "__name__", type(scorer).__name__)
    return ScorerRecord(name, functools.partial(scorer), "", "weights", 1, "")


def checked_sparsity(sparsity: float | None, where: Scope) -> float:
    if sparsity is None:
        if isinstance(where, NofM):
            return 1.0 - where.n / where.m
        raise ValueError("sparsity is missing; for example sparsity=0.9 removes nine of ten weights")
    if isinstance(sparsity, bool) or not isinstance(sparsity, (int, float)):
        raise TypeError(f"sparsity is a {type(sparsity).__name__}; expected a number in [0, 1)")
    if not 0 <= sparsity < 1:
        hint = f"; did you mean {sparsity / 100:g}?" if 1 < sparsity < 100 else ""
        raise ValueError(f"sparsity {sparsity:g} is outside [0, 1){hint}")
    return float(sparsity)


def checked_schedule(
    schedule: str | Callable[[int, int, float], float], rounds: int | None, record: ScorerRecord
) -> tuple[Callable[[int, int, float], float], int]:
    if isinstance(schedule, str):
        if schedule not in SCHEDULES:
            raise ValueError(f"unknown schedule {schedule!r}; there are {', '.join(SCHEDULES)}")
        if schedule == "one-shot":
            if rounds not in (None, 1):
                raise ValueError(f"schedule one-shot has one round, not {rounds}; leave rounds out")
            rounds = 1
        schedule = SCHEDULES[schedule]
    rounds = record.rounds if rounds is None else rounds
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise ValueError(f"rounds is {rounds!r}; expected a whole number from 1 up")
    return schedule, rounds


def _checked_done(done: tuple[int, Mask], rounds: int, full: Mask) -> tuple[int, Mask]:
    t, mask = done
    if not 0 <= t <= rounds:
        raise ValueError(f"done: round {t} of {rounds}; was the earlier call given other rounds?")
    shapes = {name: bits.shape for name, bits in mask.bits.items()}
    if shapes != {name: bits.shape for name, bits in full.bits.items()}:
        raise ValueError("done: the mask is one for another model, or for other tensors of it")
    device = next((bits.device for bits in full.bits.values()), None)
    return t, Mask({name: mask.bits[name].to(device) for name in full.bits})


def _checked_whole(whole: Iterable[str], weights: Mapping[str, Tensor], where: Scope) -> list[str]:
    whole = [whole] if isinstance(whole, str) else list(whole)
    if whole and not isinstance(where, Global):
        raise ValueError("whole= works with scope 'global'; with others, exclude= leaves tensors out of the count")
    if unknown := sorted(set(whole) - set(weights)):
        raise ValueError(f"whole: {unknown[0]} is not a prunable tensor of the model")
    return whole


def _check_budget(weights: Mapping[str, Tensor], density: float, min_per_layer: int, whole: Sequence[str]) -> None:
    total = sum(w.numel() for w in weights.values())
    kept = budget(total, density)
    if not kept:
        raise ValueError(f"sparsity {1 - density:g} of {total} weights keeps none; lower it")
    if isinstance(min_per_layer, bool) or not isinstance(min_per_layer, int) or min_per_layer < 0:
        raise ValueError(f"min_per_layer is {min_per_layer!r}; expected a whole number from 0 up")
    rest = sum(min(min_per_layer, w.numel()) for name, w in weights.items() if name not in whole)
    floor = rest + sum(weights[name].numel() for name in whole)
    if floor > kept or (whole and floor == kept < total):
        also = f" and whole={list(whole)}" if whole else ""
        raise ValueError(
            f"min_per_layer={min_per_layer}{also} keeps {floor} weights in {len(weights)} tensors, "
            f"sparsity {1 - density:g} only {kept}"
        )


def _data(
    model: nn.Module, record: ScorerRecord, batches: Iterable[Any] | None, input_size: Sequence[int] | None, device: Any
) -> Batches | None:
    if batches is None:
        if record.needs in ("inputs", "labels"):
            raise ValueError(f"scorer {record.name} needs data; pass batches=[(inputs, labels), …]")
        shape = tuple(input_size) if input_size is not None else input_shape(model)
        if shape is None and record.needs == "shape":
            raise ValueError(
                f"{type(model).__name__} does not tell its input size; pass input_size=(3, 224, 224) or batches"
            )
        # as many samples as a small batch, for methods that draw their own input; no memory behind them
        data = None if shape is None else Batches([torch.ones(1, *shape).expand(16, *shape)], device, _dtype(model))
    else:
        data = Batches(batches, device, _dtype(model))
    if data is not None and (batches is not None or record.needs != "weights"):
        first = data.first()
        if record.needs == "labels" and first.labels is None:
            raise ValueError(f"scorer {record.name} needs labels; pass batches of (inputs, labels), not inputs alone")
        if record.paths:
            check_visible(model, first)
    return data


# where it runs


@contextmanager
def _placed(model: nn.Module, accelerator: Any) -> Iterator[tuple[nn.Module, torch.device]]:
    """The bare model, on the accelerator's device while it is scored, checked and the same on every process."""
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise TypeError(f"the model is wrapped in {type(model).__name__}; prune the module inside, before wrapping it")
    if accelerator is not None:
        model = accelerator.unwrap_model(model)
    check_weights(model)
    home = _device(model)
    device = home if accelerator is None else accelerator.device
    _check_same_weights(model)
    if device == home:
        yield model, device
        return
    model.to(device)
    try:
        yield model, device
    finally:
        model.to(home)


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _dtype(model: nn.Module) -> torch.dtype:
    """The dtype to score in: the model's, or float32 for half precision."""
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return own if own.itemsize >= 4 else torch.float32


def _cuda_devices(model: nn.Module) -> list[int]:
    device = _device(model)
    return [device.index or 0] if device.type == "cuda" else []


def _generator(seed: int, t: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed * 1_000_003 + t) % (2**63 - 1))


def _processes() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _check_same_weights(model: nn.Module) -> None:
    if _processes() == 1:
        return
    sums = {name: float(p.detach().double().sum()) for name, p in model.named_parameters()}
    everyone: list[Any] = [None] * _processes()
    dist.all_gather_object(everyone, sums)
    for rank, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            name = next((n for n in everyone[0] if theirs.get(n) != everyone[0][n]), "a parameter")
            raise DisagreementError(
                f"{name} differs between rank 0 and rank {rank}; load or seed the model alike first"
            )


def _agreed(mask: Mask) -> Mask:
    """Rank 0's mask on every process, and proof of it."""
    if _processes() == 1:
        return mask
    bits = {}
    for name, mine in mask.bits.items():
        sent = mine.to(torch.uint8)
        dist.broadcast(sent, src=0)
        bits[name] = sent.bool()
    mask = Mask(bits)
    everyone: list[Any] = [None] * _processes()
    dist.all_gather_object(everyone, mask.digest())
    if len(set(everyone)) > 1:
        raise DisagreementError(f"masks differ between processes after the broadcast: {everyone}")
    return mask


@contextmanager
def _bar(rounds: int, progress: bool, data: Batches | None, done: int) -> Iterator[Callable[[Mask], None]]:
    """A bar over rounds, or over batches where there is a single round; on rank 0 only."""
    rank = dist.get_rank() if _processes() > 1 else 0
    hidden = not progress or rank != 0
    total, unit = (rounds, "round") if rounds > 1 else (None, "batch")
    with tqdm(total=total, unit=unit, desc="pruning", disable=hidden, delay=1.0, initial=done) as bar:
        if data is not None and rounds == 1:
            data.tick = bar.update

        def advance(mask: Mask) -> None:
            bar.set_postfix_str(f"density {mask.density:.4f}", refresh=False)
            if rounds > 1:
                bar.update()

        try:
            yield advance
        finally:
            if data is not None:
                data.tick = None
