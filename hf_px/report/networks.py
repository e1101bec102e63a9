"""The networks of a report: tickets as they are, and models, dense and cut here by one method or several."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..analysis import Saliency, saliency
from ..core.errors import HfPxError, TicketError, first_line
from ..core.head import segments, silent_classes
from ..core.mask import Mask
from ..core.prunable import prunable
from ..core.registry import norm_option, scorers
from ..core.shareable import shareable, short_name
from ..data import data_config, load_pruning_set, num_classes
from ..data.load import NOISE
from ..data.model_inputs import LabelsError
from ..data.presets import preset_of
from ..models.load import check_name
from ..models.remote import Source
from ..pruning import score
from ..tickets import directory
from ..tickets.ticket import Ticket
from ..tickets.ticket_file import PACKED
from ..training.local_settings import read_local

Examples = list[tuple[Tensor, Tensor]]
_COLUMNS = ("layer", "dense")  # that tables have beside one for each network


@dataclass(frozen=True)
class Network:
    """θ and M; a ticket's θ is masked already."""

    name: str
    model: nn.Module
    mask: Mask | None = None  # None: dense
    told: Mapping[str, Any] = field(default_factory=dict)  # what a ticket says of itself
    dense: str | None = None  # the network of this page that has the same weights, unpruned
    saliency: Saliency | None = None
    batches: Examples | None = None  # None: no data at hand
    data: str = ""  # where those are from
    ticket: Ticket | None = None  # as it was read
    unscored: str = ""  # why there is no saliency

    @property
    def bits(self) -> Mask:
        return Mask.ones(prunable(self.model)) if self.mask is None else self.mask

    @property
    def silent(self) -> list[int]:
        """Classes for which the head keeps no weight."""
        return [] if self.mask is None else silent_classes(self.model, self.mask)

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

    def label(self, name: str) -> str:
        """A directory's own name, or a repo's without its owner; where two would be called the same, more of it."""
        for called in (_short, shareable):
            names = [called(other) for other in self.names]
            if names.count(called(name)) == 1 and called(name) not in _COLUMNS:
                return called(name)
        return f"{_short(name)} ({self.names.index(name) + 1})"  # what tells them apart must not be shown

    def examples(self, data: str | None, model: nn.Module, draw: int) -> Examples | None:
        """What to prune and to measure by; None without data."""
        if data is None:
            return None
        size = self.batch_size or (8 if segments(model) else 100)
        return load_pruning_set(
            data, model, self.per_class, size, draw,
            split=self.split, image_column=self.image_column, label_column=self.label_column,
        )  # fmt: skip


def check_names(asked: Asked) -> None:
    """Refuse what is neither a ticket nor a model, as far as this disk can tell."""
    for name in asked.names:
        if asked.names.count(name) > 1:
            raise ValueError(f"{name}: named twice; once will do")
        if Path(name).expanduser().is_dir() and is_ticket(name):
            continue
        try:
            check_name(name, pretrained=asked.pretrained, architecture=asked.architecture)
        except ValueError as error:
            raise ValueError(f"{error}; and no ticket lies in a directory {name}") from error


def is_ticket(name: str, revision: str | None = None) -> bool:
    """Does a ticket lie there? Of a name on the Hub, its small files say so; a timm name is none."""
    if not Path(name).expanduser().is_dir() and (name.count("/") != 1 or name.startswith((".", "/", "~", "timm/"))):
        return False
    try:
        source = Source.of(name, revision=revision)
        config = source.file(directory.CONFIG)
        told = {} if config is None else json.loads(config.read_text(encoding="utf-8"))
        marked = told.get("quantization_config") if isinstance(told, dict) else None
        ours = isinstance(marked, dict) and marked.get("quant_method") == "hf_px"
        return ours or source.file(PACKED) is not None
    except (TicketError, ValueError):
        return False  # whoever loads it as a model says better what is wrong


def ticket(name: str, asked: Asked) -> Network:
    """A ticket with its images, and the scores that its method gives its weights now."""
    found = Ticket.from_pretrained(name, revision=asked.revision)
    model = found.to_model().to(asked.device)
    mask = found.mask_for(model)
    mask = Mask({name: bits.to(asked.device) for name, bits in mask.bits.items()})
    told, settings = found.config, found.config.get("settings", {})
    own = (read_local(Path(name).expanduser()) or settings).get("data")
    data = asked.data or (own if isinstance(own, str) and _on_this_disk(own) else None)
    try:
        batches = asked.examples(data, model, asked.data_seeds[0])
    except LabelsError as error:
        raise ValueError(
            f"{name}: a ticket of {num_classes(model)} classes, and {data} has more; name data of its own with --data"
        ) from error
    scored = _scored(model, mask, batches, told)
    why, found_scores = (scored, None) if isinstance(scored, str) else ("", scored)
    shown = shareable(data or "")
    return Network(asked.label(name), model, mask, told, None, found_scores, batches, shown, found, why)


def _scored(model: nn.Module, mask: Mask, batches: Examples | None, told: Mapping[str, Any]) -> Saliency | str:
    """The scores that its method gives its weights now, or why there are none."""
    method, norm = told.get("scorer"), told.get("settings", {}).get("norm")
    if not isinstance(method, str) or method not in scorers:
        return f"its method is {method!r:.40}, none of hf-px scorers" if method else "it names no method"
    record = scorers[method]
    if batches is None and record.needs in ("inputs", "labels"):
        return f"{method} needs its data, which are not on this disk; name some with --data"
    size = tuple(data_config(model)["input_size"])
    options = norm_option(record, norm if isinstance(norm, str) else None) if "norm" in record.options else {}
    try:
        return saliency(score(model, method, batches, mask=mask, input_size=size, **options), mask, mask)
    except (HfPxError, ValueError) as error:  # trained weights may leave what the method can score; the rest stands
        return f"{method} cannot score it: {first_line(error)}"


def _on_this_disk(data: str) -> bool:
    """No network call that nobody asked for: a ticket's data are taken where they lie here."""
    preset = preset_of(data)
    if preset is not None:
        return preset.name == "digits" or preset.local_copy() is not None
    return data != NOISE and Path(data).expanduser().exists()


def _short(name: str) -> str:
    return short_name(name) if Path(name).expanduser().exists() else name.rpartition("/")[2] or name
