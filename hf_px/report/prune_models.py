"""Models that are pruned for a report: one mask for each method, seed and draw of the data."""

from __future__ import annotations

import functools
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..analysis.saliency import Saliency, saliency
from ..core.head import segments
from ..core.mask import Mask
from ..core.prunable import prunable
from ..core.shareable import shareable
from ..data import data_config
from ..models.load import load
from ..prune_config import PruneConfig
from ..pruning import prune
from ..tickets.mask_file import load_mask, save_mask
from ..training.tasks import task_of
from .cache import ReportCache, digest_of, weights_digest
from .networks import Network, PruningBatches, ReportRequest, is_ticket, load_ticket, score_with

_SAVE_EVERY = 5.0  # seconds


def load_networks(request: ReportRequest, cache: ReportCache) -> list[Network]:
    """All networks of the request; models are pruned here, which may take a while."""
    found: list[Network] = []
    for name in request.names:
        if is_ticket(name, request.revision):
            found.append(load_ticket(name, request))
        else:
            found += _load_model(name, request, cache)
    if request.pruning and all(network.dense_name is None for network in found):
        methods = " ".join(str(config.scorer) for config in request.pruning)
        raise ValueError(f"`scorers` {methods} prunes models, but only tickets are named, which are pruned already")
    return found


def _load_model(name: str, request: ReportRequest, cache: ReportCache) -> list[Network]:
    """The dense model, and its pruned copies for each method, seed and draw of the data."""
    found: list[Network] = []
    task, label = task_of(name), request.label(name)
    data = request.data or ("digits" if task.name == "classification" else None)
    dense_names: dict[str, str] = {}  # {digest of weights: name of the dense network}
    for seed in request.seeds:
        model = load(
            name, pretrained=request.pretrained, num_classes=request.num_classes, seed=seed, revision=request.revision,
            architecture=request.architecture,
        ).model.to(request.device)  # fmt: skip
        record = getattr(model, "pretrained_cfg", None) or {}
        header = {"model": {"architecture": record.get("architecture") or request.architecture or label}}

        @functools.cache
        def batches_of(data_seed: int, model: nn.Module = model) -> PruningBatches | None:
            return request.load_batches(data, model, data_seed)

        batches = batches_of(request.data_seeds[0])  # the same images for all spectra
        common: dict[str, Any] = {"batches": batches, "data": shareable(data or "")}
        weights = weights_digest(model)
        if weights not in dense_names:  # random weights differ by seed, trained ones do not
            dense_names[weights] = f"{label}, dense" + (f", seed {seed}" if dense_names else "")
            found.append(Network(dense_names[weights], model, None, header, **common))
        for config in request.pruning:
            config = replace(config, seed=seed).resolved(segmentation=segments(model))
            uses_data = config.record.needs in ("inputs", "labels")
            if batches is None and uses_data:
                raise ValueError(
                    f"{config.scorer} needs data, and {name} has no default data set; name one with `data`"
                )
            for data_seed in request.data_seeds if uses_data else request.data_seeds[:1]:
                mask, scores = _pruned(model, config, batches_of(data_seed), request, cache, weights)
                title = f"{label}, {config.scorer}" if len(request.names) > 1 else str(config.scorer)
                title += f", seed {seed}" if len(request.seeds) > 1 else ""
                title += f", data {data_seed}" if len(request.data_seeds) > 1 and uses_data else ""
                settings = {"rounds": config.rounds, "seed": seed} | ({"norm": config.norm} if config.norm else {})
                pruned = {**header, "scorer": config.scorer, "settings": settings}
                found.append(Network(title, model, mask, pruned, dense_names[weights], scores, **common))
    return found


def _pruned(
    model: nn.Module,
    config: PruneConfig,
    batches: PruningBatches | None,
    request: ReportRequest,
    cache: ReportCache,
    weights: str,
) -> tuple[Mask, Saliency]:
    """The mask and the scores of its last round; rounds are saved as they go, each with the one before it."""
    used = batches if batches is not None and config.record.needs != "weights" else []
    images = digest_of({f"{what} {i}": t for i, pair in enumerate(used) for what, t in zip(("x", "y"), pair)})
    key = {"weights": weights, "images": images, **asdict(config)}
    rounds = config.total_rounds
    path, path_before = (cache.path(name, key, ".safetensors") for name in ("mask", "before"))
    full = Mask.ones(prunable(model))
    saved, saved_before = _read_round(path), _read_round(path_before)
    masks = {0: full} | dict(each for each in (saved, saved_before) if each is not None)
    if saved is not None and saved[0] == rounds and rounds - 1 not in masks:
        saved = None  # the last round's scores need the mask before it
    last_saved = time.monotonic()

    def save(t: int, mask: Mask) -> None:
        nonlocal last_saved
        masks[t] = mask
        if t == rounds or time.monotonic() - last_saved > _SAVE_EVERY:
            cache.directory.mkdir(parents=True, exist_ok=True)
            save_mask(masks[t - 1], path_before, {"round": str(t - 1)})
            save_mask(mask, path, {"round": str(t)})
            last_saved = time.monotonic()
        masks.pop(t - 2, None)

    if saved is None or saved[0] < rounds:
        prune(
            model, config, batches=batches, resume_from=saved, on_round=save, progress=request.progress,
            input_size=tuple(data_config(model)["input_size"]),
        )  # fmt: skip
    last_two = [masks[rounds - 1], masks[rounds]]
    # a file does not keep the model's order of tensors
    before, mask = (Mask({name: m.bits[name].to(request.device) for name in full.bits}, m.excluded) for m in last_two)
    assert config.scorer is not None
    scores = score_with(model, config.scorer, batches, before, round_index=rounds, seed=config.seed, norm=config.norm)
    return mask, saliency(scores, before, mask)


def _read_round(path: Path) -> tuple[int, Mask] | None:
    try:
        mask, metadata = load_mask(path)
        return int(metadata["round"]), mask
    except (ValueError, KeyError, OSError):  # a damaged file counts as missing
        return None
