"""prune and score. In rounds t = 1..T: M ← M & allocate(S(θ ⊙ M), d(t)), where S scores and d(t) is the density.

On several processes every batch is scored by one of them, signed scores are summed, and rank 0's mask is broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from tqdm.auto import tqdm

from . import scorers as _methods  # noqa: F401  registers every method
from .channels.scope import fitted, warn_of_thin_layers
from .core.allocate import PerLayer, Schedule, Scope, budget
from .core.batches import Batches
from .core.errors import DisagreementError, NonFiniteScoreError
from .core.forward import check_inputs, input_shape, undisturbed
from .core.head import head_of, segments
from .core.mask import Mask, MaskedWeights
from .core.processes import gather, rank, world_size
from .core.prunable import check_weights, finite, plain_module, prunable
from .core.registry import Scorer, ScorerRecord, Scores, scorers
from .core.seeds import mix_seed
from .paths import check_visible, weights_that_steer
from .paths.collapse import check_alive, check_signal, warn_of_lost_factors, warn_of_lost_layers
from .prune_config import DEFAULT_SCORER, PruneConfig


def list_scorers() -> list[str]:
    """Names of all scorers."""
    return list(scorers)


def score(
    model: nn.Module,
    scorer: str | Scorer | PruneConfig,
    batches: Iterable[Any] | None = None,
    *,
    mask: Mask | None = None,
    round_index: int = 1,
    seed: int = 0,
    norm: str | None = None,
    exclude: Iterable[str] = (),
    input_size: Sequence[int] | None = None,
    accelerator: Any = None,
    **options: Any,
) -> dict[str, Tensor]:
    """Scores of one round, {state_dict name: scores}; high scores are kept.

    With a mask, the scores of θ ⊙ M, as a later round computes them. `round_index` is the number of that round, for
    methods that draw random numbers. The other arguments are those of `prune`.
    """
    config = _config(model, scorer, norm=norm, exclude=exclude, seed=seed)
    options = _scorer_options(config, options, "score")
    with _placed(model, accelerator) as (model, device):
        mask = Mask.ones(prunable(model, config.exclude)) if mask is None else mask
        data = _data(model, config.record, batches, input_size, device)
        generator = _generator(config.seed, round_index)
        return _score_round(model, config.record, mask.weights(model), data, generator, options, mask.density)


def prune(
    model: nn.Module,
    scorer: str | Scorer | PruneConfig = DEFAULT_SCORER,
    *,
    sparsity: float | None = None,
    batches: Iterable[Any] | None = None,
    rounds: int | None = None,
    scope: str | Scope = "global",
    of: str = "weights",
    schedule: str | Schedule = "exponential",
    norm: str | None = None,
    keep_head: bool | None = None,
    keep_dense: Iterable[str] = (),
    exclude: Iterable[str] = (),
    min_per_layer: int = 0,
    seed: int = 0,
    input_size: Sequence[int] | None = None,
    accelerator: Any = None,
    progress: bool = True,
    resume_from: tuple[int, Mask] | None = None,
    on_round: Callable[[int, Mask], None] | None = None,
    **options: Any,
) -> Mask:
    """The mask that keeps round((1 - sparsity) · n) of the model's n prunable weights. The model is not changed.

    model          any torch module, timm and transformers vision models included
    scorer         a name from list_scorers(), a callable like them (hf_px.core.registry.Scorer), or a PruneConfig,
                   which holds all choices down to `seed`
    sparsity       fraction of the weights to remove, in [0, 1). Default: 0.982; 0.5 of channels; what n:m implies
    batches        a list or loader of (inputs, labels), of dicts as transformers makes them, or of bare inputs; the
                   same on each of several processes. None for methods that need no data
    rounds         how often to score. Default: the method's own
    scope          "global", "layer", "erk", "n:m" as in "2:4", along the input dimension, or whole channels, which
                   `shrink` removes: "channel", in groups "channel:16"; `of` "macs": a sparsity of multiply-adds
    schedule       "exponential", "linear" or "one-shot"
    norm           statistics in normalisation, for px and px-path. Default: "batch"; px on segmentation models: "flow"
    keep_head      keep all weights of the last layer, within the count: path scores may leave a class without a weight.
                   Default: with scope "global", if they are at most half of the weights that stay
    keep_dense     names of tensors that keep all their weights, within the count
    exclude        names of tensors that are not pruned and do not count
    min_per_layer  every tensor keeps at least this many weights
    seed           seed of the method's random draws
    input_size     shape of one input, if neither batches nor the model tell it
    accelerator    an accelerate.Accelerator: score on its device
    resume_from    (t, mask) as on_round got it: continue after round t of an earlier, equal call, with the same result
    on_round       called with (t, mask) after each round
    options        the method's own, for example walks=1000 for phew
    """
    config = _config(
        model, scorer, sparsity=sparsity, rounds=rounds, scope=scope, of=of, schedule=schedule, norm=norm,
        keep_head=keep_head, keep_dense=keep_dense, exclude=exclude, min_per_layer=min_per_layer, seed=seed,
    )  # fmt: skip
    options = _scorer_options(config, options, "prune")
    with _placed(model, accelerator) as (model, device):
        weights = prunable(model, config.exclude)
        floors = _floors(config, weights, config.kept_dense(model, weights))
        data = _data(model, config.record, batches, input_size, device)
        allocation = fitted(config.allocation, model, weights, config.density, input_size, batches)
        start = _start(resume_from, config.total_rounds, Mask(Mask.ones(weights).bits, tuple(config.exclude)))
        return _prune_in_rounds(model, config, allocation, data, floors, start, progress, on_round, options)


def _prune_in_rounds(
    model: nn.Module,
    config: PruneConfig,
    allocation: Scope,
    data: Batches | None,
    floors: Mapping[str, int],
    start: tuple[int, Mask],
    progress: bool,
    on_round: Callable[[int, Mask], None] | None,
    options: Mapping[str, Any],
) -> Mask:
    """The mask after the last round; `start` is (t, mask) of the round before the first."""
    record, rounds = config.record, config.total_rounds
    last, mask = start
    allocation = _with_steering_apart(allocation, record, model, mask, data)
    memory, scoreless = None, None
    with _progress_bar(rounds, progress, data, last) as advance:
        for t in range(last + 1, rounds + 1):
            memory = mask.weights(model, reuse=memory)
            generator = _generator(config.seed, t)
            scores = _score_round(model, record, memory, data, generator, options, config.density)
            if t == 1:
                scoreless = check_signal(record, scores)
            density = config.density_schedule(t, rounds, config.density)
            candidates = Mask.ones(mask.bits) if record.revives else mask
            mask = replace(_broadcast(allocation(scores, density, candidates, floors)), excluded=tuple(config.exclude))
            advance(mask)
            if on_round is not None:
                on_round(t, mask)
    flow = record.name == "px" and config.norm != "flow"
    steering = _steering(model, mask, data) if flow and data is not None else []
    warn_of_lost_layers(mask, check_alive(model, mask, data), head_of(model), scoreless, flow, steering)
    warn_of_lost_factors(model, mask, data)
    warn_of_thin_layers(allocation, mask)
    return mask


def _steering(model: nn.Module, mask: Mask, data: Batches) -> list[str]:
    """Names of the tensors that lie on no path of the dense network, such as queries and keys."""
    return [name for name, bits in _off_path(model, mask.bits, data).items() if bits.all()]


def _with_steering_apart(
    allocation: Scope, record: ScorerRecord, model: nn.Module, mask: Mask, data: Batches | None
) -> Scope:
    """With budgets by layer, path methods keep queries and keys as dense as the values that share their tensor."""
    if not isinstance(allocation, PerLayer) or not record.paths or data is None:
        return allocation
    off = _off_path(model, mask.bits, data)
    return replace(allocation, apart={name: bits for name, bits in off.items() if not bits.all()})


def _off_path(model: nn.Module, like: Mapping[str, Tensor], data: Batches) -> dict[str, Tensor]:
    with undisturbed(model):
        return weights_that_steer(model, Mask.ones(like).weights(model), data.first())


def _score_round(
    model: nn.Module,
    record: ScorerRecord,
    weights: MaskedWeights,
    data: Batches | None,
    generator: torch.Generator,
    options: Mapping[str, Any],
    density: float,
) -> dict[str, Tensor]:
    final = {"density": density} if "density" in record.options else {}
    # a callable may draw from torch's global generator; the user's own random numbers must not depend on that
    device = _device(model)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(generator.initial_seed())
        found = record.score(model, weights, data, generator=generator, **{**final, **options})
    return _checked_scores(record, found, weights.mask)


def _checked_scores(record: ScorerRecord, found: Scores, mask: Mask) -> dict[str, Tensor]:
    if missing := sorted(set(mask.bits) - set(found)):
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


# Checks before any work


def _config(model: nn.Module, scorer: str | Scorer | PruneConfig, **choices: Any) -> PruneConfig:
    """The choices, with defaults for this model. A PruneConfig in place of the scorer holds all of them."""
    segmentation = segments(plain_module(model))
    if isinstance(scorer, PruneConfig):
        defaults = {field.name: field.default for field in fields(PruneConfig)}
        if beside := [name for name, value in choices.items() if value not in (defaults[name], [])]:
            hint = f"dataclasses.replace(config, {beside[0]}=…)"
            raise TypeError(f"`{beside[0]}` is given beside a PruneConfig, which has it already; use {hint}")
        return scorer.resolved(segmentation)
    return PruneConfig(scorer, **choices).resolved(segmentation)


def _scorer_options(config: PruneConfig, options: Mapping[str, Any], function: str) -> dict[str, Any]:
    """The method's own keyword arguments; one that it does not have is an error."""
    record = config.record
    own = sorted(set(record.options) - {"density", "norm"})  # density is set by prune, norm by the config
    if not callable(config.scorer) and (unknown := sorted(set(options) - set(own))):
        raise TypeError(
            f"`{unknown[0]}` is not an option of {function} or of scorer {record.name} "
            f"(its own: {', '.join(own) or 'none'})"
        )
    return {**options, "norm": config.norm} if config.norm is not None else dict(options)


def _start(resume_from: tuple[int, Mask] | None, rounds: int, full: Mask) -> tuple[int, Mask]:
    """(t, mask) to continue from, checked; (0, full) at the beginning."""
    if resume_from is None:
        return 0, full
    if not (isinstance(resume_from, Sequence) and len(resume_from) == 2 and isinstance(resume_from[1], Mask)):
        raise TypeError(f"`resume_from` is {resume_from!r:.40}; expected (t, mask), as `on_round` gets them")
    t, mask = resume_from
    if not 0 <= t <= rounds:
        raise ValueError(f"`resume_from`: round {t} of {rounds}; did the earlier call have other `rounds`?")
    shapes = {name: bits.shape for name, bits in mask.bits.items()}
    if shapes != {name: bits.shape for name, bits in full.bits.items()}:
        raise ValueError("`resume_from`: the mask belongs to another model, or to other tensors of it")
    device = next((bits.device for bits in full.bits.values()), None)
    return t, Mask({name: mask.bits[name].to(device) for name in full.bits}, full.excluded)


def _floors(config: PruneConfig, weights: Mapping[str, Tensor], dense: Sequence[str]) -> dict[str, int]:
    """{name: least number of weights}; an error if the scope or sparsity does not allow that many."""
    config.allocation.check({name: w.shape for name, w in weights.items()}, config.density)
    total = sum(w.numel() for w in weights.values())
    kept = budget(total, config.density)
    if not kept:
        raise ValueError(f"`sparsity` {config.sparsity:g} of {total} weights keeps none; lower it")
    floors = {name: w.numel() if name in dense else min(config.min_per_layer, w.numel()) for name, w in weights.items()}
    least = sum(floors.values())
    if least > kept or (dense and least == kept < total):
        asked = [f"`min_per_layer` {config.min_per_layer}"] if config.min_per_layer else []
        asked += ["`keep_dense`"] if config.keep_dense else []
        asked += ["`keep_head`"] if config.keep_head else []
        tensors = f" for {', '.join(dense)}" if config.keep_dense or config.keep_head else ""
        raise ValueError(
            f"{' and '.join(asked)} need{'s' * (len(asked) == 1)} {least} weights{tensors}, but `sparsity` "
            f"{config.sparsity:g} leaves {kept} for all layers; lower `sparsity`"
            f"{' or prune the head, too' * bool(config.keep_head)}"
        )
    return floors


def _data(
    model: nn.Module, record: ScorerRecord, batches: Iterable[Any] | None, input_size: Sequence[int] | None, device: Any
) -> Batches | None:
    if batches is None:
        if record.needs in ("inputs", "labels"):
            raise ValueError(f"scorer {record.name} needs data; pass `batches`, for example [(inputs, labels), …]")
        shape = tuple(input_size) if input_size is not None else input_shape(model)
        if shape is None and record.needs == "shape":
            raise ValueError(
                f"{type(model).__name__} has no known input size; pass `input_size`, for example (3, 224, 224), or "
                "`batches`"
            )
        # as many samples as a small batch, for methods that draw their own input; expand takes no memory for them
        data = None if shape is None else Batches([torch.ones(1, *shape).expand(16, *shape)], device, _dtype(model))
    else:
        data = Batches(batches, device, _dtype(model))
    if data is not None and (batches is not None or record.needs != "weights"):
        first = data.first()
        if batches is not None:
            check_inputs(model, first)
        if record.needs == "labels" and first.labels is None:
            raise ValueError(f"scorer {record.name} needs labels; pass `batches` of (inputs, labels), not inputs alone")
        if record.paths:
            check_visible(model, first)
    return data


# Devices and processes


@contextmanager
def _placed(model: nn.Module, accelerator: Any) -> Iterator[tuple[nn.Module, torch.device]]:
    """The unwrapped model on the accelerator's device, checked, and equal on every process; moved back at the end.

    Gradients are on inside, also for a caller who has switched them off: scores and live paths are gradients.
    """
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise TypeError(f"the model is wrapped in {type(model).__name__}; prune the module inside, before wrapping it")
    if accelerator is not None:
        model = accelerator.unwrap_model(model)
    model = plain_module(model)
    check_weights(model)
    home = _device(model)
    device = home if accelerator is None else accelerator.device
    _check_same_weights(model)
    model.to(device)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield model, device
    finally:
        model.to(home)


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _dtype(model: nn.Module) -> torch.dtype:
    """The dtype to score in: the model's, or float32 for half precision."""
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return own if own.itemsize >= 4 else torch.float32


def _generator(seed: int, t: int) -> torch.Generator:
    return torch.Generator().manual_seed(mix_seed(seed, t))


def _check_same_weights(model: nn.Module) -> None:
    if world_size() == 1:
        return
    everyone = gather({name: float(p.detach().double().sum()) for name, p in model.named_parameters()})
    for other, sums in enumerate(everyone):
        if sums != everyone[0]:
            name = next((n for n in everyone[0] if sums.get(n) != everyone[0][n]), "a parameter")
            raise DisagreementError(
                f"{name} differs between rank 0 and rank {other}; load or seed the model alike on every process"
            )


def _broadcast(mask: Mask) -> Mask:
    """Rank 0's mask on every process; digests are compared afterwards."""
    if world_size() == 1:
        return mask
    bits = {}
    for name, mine in mask.bits.items():
        sent = mine.to(torch.uint8)
        dist.broadcast(sent, src=0)
        bits[name] = sent.bool()
    mask = Mask(bits)
    digests = gather(mask.digest())
    if len(set(digests)) > 1:
        raise DisagreementError(f"masks differ between processes after the broadcast: {digests}")
    return mask


@contextmanager
def _progress_bar(rounds: int, progress: bool, data: Batches | None, done: int) -> Iterator[Callable[[Mask], None]]:
    """A bar over rounds, or over batches if there is a single round; on rank 0 only."""
    total, unit = (rounds, "round") if rounds > 1 else (None, "batch")
    hidden = not progress or rank() != 0
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
