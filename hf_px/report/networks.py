"""The networks of a report: tickets as they are, and models, dense and cut here by one method or several."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..analysis import Saliency, saliency
from ..data import data_config, load_pruning_set
from ..data.load import NOISE
from ..data.presets import preset_of
from ..errors import TicketError
from ..hub import home
from ..hub.backbones import check_name, load
from ..hub.format import PACKED
from ..hub.remote import Source
from ..hub.ticket import Ticket
from ..mask import Mask
from ..prunable import prunable
from ..registry import norm_option, scorers
from ..rounds import prune, score
from ..store import load_mask, save_mask
from ..tasks import task_of
from .parts import Parts, digest_of, weights_of

_EVERY = 5.0  # seconds between the rounds that are saved
Batches = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Network:
    """θ and M; a ticket's θ is masked already."""

    name: str
    model: nn.Module
    mask: Mask | None = None  # None: dense
    told: Mapping[str, Any] = field(default_factory=dict)  # what a ticket says of itself
    dense: str | None = None  # the network of this page that has the same weights, unpruned
    saliency: Saliency | None = None
    batches: Batches | None = None  # None: no data at hand
    data: str = ""  # where those are from

    @property
    def bits(self) -> Mask:
        return Mask.ones(prunable(self.model)) if self.mask is None else self.mask

    @property
    def kin(self) -> str:
        """Equal for networks whose layers and images are the same, so that one compares with the other."""
        layers = [(name, tuple(w.shape)) for name, w in self.bits.tensors_of(self.model).items()]
        return json.dumps([layers, list(data_config(self.model)["input_size"])])

    @property
    def architecture(self) -> str:
        record = self.told.get("model", {})
        names = record.get("architectures") or [type(self.model).__name__]
        return str(record.get("architecture") or names[0])


@dataclass(frozen=True)
class Asked:
    """What the command line says of networks and data."""

    names: Sequence[str]
    scorers: Sequence[str] = ()
    sparsity: float = 0.982
    rounds: int | None = None
    norm: str | None = None
    seeds: Sequence[int] = (0,)
    data_seeds: Sequence[int] = (0,)
    data: str | None = None
    per_class: int = 10
    batch_size: int | None = None
    split: str = "train"
    image_column: str | None = None
    label_column: str | None = None
    architecture: str | None = None
    num_classes: int | None = None
    pretrained: bool | None = None
    revision: str | None = None
    device: torch.device | str = "cpu"
    progress: bool = True


def networks(asked: Asked, parts: Parts) -> list[Network]:
    """All of them, loaded, with names of their own; the models are cut here, which may take a while."""
    found: list[Network] = []
    for name in asked.names:
        found += [_ticket(name, asked)] if is_ticket(name, asked.revision) else _cut(name, asked, parts)
    return _named_apart(found)


def check_names(asked: Asked) -> None:
    """Refuse what is neither a ticket nor a model, as far as this disk can tell."""
    for name in asked.names:
        if Path(name).expanduser().is_dir() and is_ticket(name):
            continue
        check_name(name, pretrained=asked.pretrained, architecture=asked.architecture)


def is_ticket(name: str, revision: str | None = None) -> bool:
    """Does a ticket lie there? Of a name on the Hub, its small files say so; a timm name is none."""
    if not Path(name).expanduser().is_dir() and (name.count("/") != 1 or name.startswith((".", "/", "~", "timm/"))):
        return False
    try:
        source = Source.of(name, revision=revision)
        config = source.file(home.CONFIG)
        if config is None:
            return source.file(PACKED) is not None
        told = json.loads(config.read_text(encoding="utf-8"))
    except (TicketError, ValueError):
        return False  # whoever loads it as a model says better what is wrong
    marked = told.get("quantization_config") if isinstance(told, dict) else None
    ours = isinstance(marked, dict) and marked.get("quant_method") == "hf_px"
    return ours or source.file(PACKED) is not None


def _ticket(name: str, asked: Asked) -> Network:
    ticket = Ticket.from_pretrained(name, revision=asked.revision)
    model = ticket.to_model().to(asked.device)
    told = ticket.config
    mask = ticket.mask_for(model)
    settings = told.get("settings", {})
    here = settings.get("data") if isinstance(settings.get("data"), str) else None
    data = asked.data or (here if here and _on_this_disk(here) else None)
    batches = _batches(data, model, asked, asked.data_seeds[0])
    network = Network(_short(name), model, mask, told, batches=batches, data=data or "")
    method = told.get("scorer")
    if batches is None or not isinstance(method, str) or method not in scorers:
        return network
    record = scorers[method]
    norm = settings.get("norm") if "norm" in record.options else None
    scores = score(model, method, batches, mask=mask, **norm_option(record, norm if isinstance(norm, str) else None))
    return _with(network, saliency(scores, mask, mask))


def _with(network: Network, found: Saliency) -> Network:
    return Network(**{**vars(network), "saliency": found})


def _cut(name: str, asked: Asked, parts: Parts) -> list[Network]:
    """The model, dense, and by each method, seed and draw of data."""
    found: list[Network] = []
    task = task_of(name)
    data = asked.data or ("digits" if task.name == "classification" else None)
    seen: dict[str, str] = {}  # weights -> the name of their dense network
    for seed in asked.seeds:
        loaded = load(
            name,
            pretrained=asked.pretrained,
            num_classes=asked.num_classes,
            seed=seed,
            revision=asked.revision,
            architecture=asked.architecture,
        )
        model = loaded.model.to(asked.device)
        weights = weights_of(model)
        short = _short(name)
        if weights not in seen:
            # one model is named by its weights, several of one name by their seeds
            seen[weights] = f"{short}, dense" + (f", seed {seed}" if seen else "")
            batches = _batches(data, model, asked, asked.data_seeds[0])
            found.append(Network(seen[weights], model, batches=batches, data=data or ""))
        for method in asked.scorers:
            record = scorers[method]
            options = norm_option(record, asked.norm or task.norms.get(method)) if "norm" in record.options else {}
            for draw in asked.data_seeds if record.needs in ("inputs", "labels") else asked.data_seeds[:1]:
                batches = _batches(data, model, asked, draw)
                if batches is None and record.needs in ("inputs", "labels"):
                    raise ValueError(f"{method} needs data, and {name} has none by default; name it with --data")
                rounds = asked.rounds if asked.rounds is not None else record.rounds
                key = {
                    "weights": weights, "method": method, "sparsity": asked.sparsity, "rounds": rounds, "seed": seed,
                    "options": options, "images": _digest(batches) if record.needs != "weights" else None,
                }  # fmt: skip
                mask, scored = _pruned(model, method, batches, asked, rounds, seed, options, parts, key)
                label = f"{short}, {method}" if len(asked.names) > 1 else method
                label += f", seed {seed}" if len(asked.seeds) > 1 else ""
                label += f", data {draw}" if len(asked.data_seeds) > 1 and record.needs in ("inputs", "labels") else ""
                told = {
                    "scorer": method,
                    "settings": {k: v for k, v in key.items() if k in ("rounds", "seed")} | options,
                }
                same = _batches(data, model, asked, asked.data_seeds[0])  # one set of images for all spectra
                found.append(Network(label, model, mask, told, seen[weights], scored, same, data or ""))
    return found


def _pruned(
    model: nn.Module,
    method: str,
    batches: Batches | None,
    asked: Asked,
    rounds: int,
    seed: int,
    options: Mapping[str, Any],
    parts: Parts,
    key: Mapping[str, Any],
) -> tuple[Mask, Saliency]:
    """The mask and what its last round saw; rounds are saved as they go."""
    path, path_before = (parts.path(name, key, ".safetensors") for name in ("mask", "before"))
    done = _saved(path)
    before = _saved(path_before)
    full = Mask.ones(prunable(model))
    masks: dict[int, Mask] = (
        {0: full} | ({done[0]: done[1]} if done else {}) | ({before[0]: before[1]} if before else {})
    )
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
    prior, mask = (
        Mask({name: masks[t].bits[name].to(asked.device) for name in full.bits}) for t in (rounds - 1, rounds)
    )
    scores = score(model, method, batches, mask=prior, round=rounds, seed=seed, input_size=size, **options)
    return mask, saliency(scores, prior, mask)


def _saved(path: Path) -> tuple[int, Mask] | None:
    try:
        mask, notes = load_mask(path)
        return int(notes["round"]), mask
    except (ValueError, KeyError, OSError):
        return None


def _batches(data: str | None, model: nn.Module, asked: Asked, seed: int) -> Batches | None:
    if data is None:
        return None
    size = asked.batch_size or (8 if _segments(model) else 100)
    return load_pruning_set(
        data, model, asked.per_class, size, seed,
        split=asked.split, image_column=asked.image_column, label_column=asked.label_column,
    )  # fmt: skip


def _segments(model: nn.Module) -> bool:
    from ..head import segments

    return segments(model)


def _on_this_disk(data: str) -> bool:
    """No network call that nobody asked for: a ticket's data are taken where they lie here."""
    preset = preset_of(data)
    if preset is not None:
        return preset.name == "digits" or preset.local_copy() is not None
    return data != NOISE and Path(data).expanduser().exists()


def _digest(batches: Batches | None) -> str | None:
    if batches is None:
        return None
    return digest_of({str(i): t for i, (x, _) in enumerate(batches) for t in [x]})


def _short(name: str) -> str:
    """A directory's own name, or a repo's without its owner."""
    path = Path(name).expanduser()
    return (path.resolve().name if path.exists() else name.rpartition("/")[2]) or name


def _named_apart(found: list[Network]) -> list[Network]:
    names: list[str] = []
    for network in found:
        name, n = network.name, 1
        while name in names:
            n += 1
            name = f"{network.name} ({n})"
        names.append(name)
    return [Network(**{**vars(network), "name": name}) for network, name in zip(found, names)]
