"""Models that are pruned for a report: M for each method, seed and draw of data, and what the last round saw."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from ..analysis import Saliency, saliency
from ..core.mask import Mask
from ..core.prunable import prunable
from ..core.registry import norm_option, scorers
from ..core.shareable import shareable
from ..data import data_config
from ..models.load import load
from ..pruning import prune, score
from ..tickets.mask_file import load_mask, save_mask
from ..training.tasks import task_of
from .cache import Parts, digest_of, weights_of
from .networks import Asked, Examples, Network, is_ticket, ticket

_EVERY = 5.0  # seconds between the rounds that are saved


def networks(asked: Asked, parts: Parts) -> list[Network]:
    """All that is asked for, loaded; the models are cut here, which may take a while."""
    found: list[Network] = []
    for name in asked.names:
        found += [ticket(name, asked)] if is_ticket(name, asked.revision) else cut(name, asked, parts)
    if asked.scorers and all(network.dense is None for network in found):
        raise ValueError(
            f"--scorers {' '.join(asked.scorers)}: for models; all that is named are tickets, pruned already"
        )
    return found


def cut(name: str, asked: Asked, parts: Parts) -> list[Network]:
    """The model, dense, and by each method, seed and draw of data; a method that sees no data has one draw."""
    found: list[Network] = []
    task, label = task_of(name), asked.label(name)
    data = asked.data or ("digits" if task.name == "classification" else None)
    shown = shareable(data or "")
    dense: dict[str, str] = {}  # weights -> the name of their dense network
    for seed in asked.seeds:
        model = load(
            name, pretrained=asked.pretrained, num_classes=asked.num_classes, seed=seed, revision=asked.revision,
            architecture=asked.architecture,
        ).model.to(asked.device)  # fmt: skip
        told = getattr(model, "pretrained_cfg", None) or {}
        kind = {"model": {"architecture": told.get("architecture") or asked.architecture or label}}

        @cache
        def examples(draw: int, model: nn.Module = model) -> Examples | None:
            return asked.examples(data, model, draw)

        seen = examples(asked.data_seeds[0])  # one set of images for all spectra
        weights = weights_of(model)
        if weights not in dense:  # random ones differ by seed, trained ones do not
            dense[weights] = f"{label}, dense" + (f", seed {seed}" if dense else "")
            found.append(Network(dense[weights], model, None, kind, batches=seen, data=shown))
        for method in asked.scorers:
            record = scorers[method]
            needs = record.needs in ("inputs", "labels")
            if seen is None and needs:
                raise ValueError(f"{method} needs data, and {name} has none by default; name it with --data")
            options = norm_option(record, asked.norm or task.norms.get(method)) if "norm" in record.options else {}
            rounds = record.rounds if asked.rounds is None else asked.rounds
            for draw in asked.data_seeds if needs else asked.data_seeds[:1]:
                batches = examples(draw)
                key = {
                    "weights": weights, "method": method, "sparsity": asked.sparsity, "rounds": rounds, "seed": seed,
                    "options": options, "images": _digest(batches) if record.needs != "weights" else None,
                }  # fmt: skip
                mask, scored = _pruned(model, method, batches, asked, rounds, seed, options, parts, key)
                called = f"{label}, {method}" if len(asked.names) > 1 else method
                called += f", seed {seed}" if len(asked.seeds) > 1 else ""
                called += f", data {draw}" if len(asked.data_seeds) > 1 and needs else ""
                record_of = {**kind, "scorer": method, "settings": {"rounds": rounds, "seed": seed, **options}}
                found.append(Network(called, model, mask, record_of, dense[weights], scored, seen, shown))
    return found


def _pruned(
    model: nn.Module,
    method: str,
    batches: Examples | None,
    asked: Asked,
    rounds: int,
    seed: int,
    options: Mapping[str, Any],
    parts: Parts,
    key: Mapping[str, Any],
) -> tuple[Mask, Saliency]:
    """The mask and what its last round saw; rounds are saved as they go, each with the one before it."""
    path, path_before = (parts.path(name, key, ".safetensors") for name in ("mask", "before"))
    full = Mask.ones(prunable(model))
    done, before = _saved(path), _saved(path_before)
    masks = {0: full} | dict(saved for saved in (done, before) if saved is not None)
    if done is not None and done[0] == rounds and rounds - 1 not in masks:
        done = None
    last = time.monotonic()

    def save(t: int, mask: Mask) -> None:
        nonlocal last
        masks[t] = mask
        if t == rounds or time.monotonic() - last > _EVERY:
            parts.directory.mkdir(parents=True, exist_ok=True)
            save_mask(masks[t - 1], path_before, {"round": str(t - 1)})
            save_mask(mask, path, {"round": str(t)})
            last = time.monotonic()
        masks.pop(t - 2, None)

    size = tuple(data_config(model)["input_size"])
    if done is None or done[0] < rounds:
        prune(
            model, method, sparsity=asked.sparsity, batches=batches, rounds=rounds, seed=seed, done=done,
            on_round=save, progress=asked.progress, input_size=size, **options,
        )  # fmt: skip
    # in the model's order, which a file does not keep
    last_two = [masks[rounds - 1], masks[rounds]]
    prior, mask = (Mask({name: m.bits[name].to(asked.device) for name in full.bits}) for m in last_two)
    scores = score(model, method, batches, mask=prior, round=rounds, seed=seed, input_size=size, **options)
    return mask, saliency(scores, prior, mask)


def _saved(path: Path) -> tuple[int, Mask] | None:
    try:
        mask, notes = load_mask(path)
        return int(notes["round"]), mask
    except (ValueError, KeyError, OSError):  # not there, or damaged, which is as good
        return None


def _digest(batches: Examples | None) -> str | None:
    if batches is None:
        return None
    return digest_of({f"{what} {i}": t for i, pair in enumerate(batches) for what, t in zip(("x", "y"), pair)})
