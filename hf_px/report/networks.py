"""The networks of a report: the request of the command, tickets, and models, dense or pruned here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..analysis.saliency import Saliency, saliency
from ..core.errors import HfPxError, TicketError, first_line
from ..core.head import silent_classes
from ..core.mask import Mask
from ..core.prunable import prunable
from ..core.registry import Scorer, scorers
from ..core.shareable import shareable, short_name
from ..data import data_config, load_pruning_set, num_classes
from ..data.model_inputs import LabelsError
from ..data.presets import preset_of
from ..data.source import NOISE
from ..models.load import check_name
from ..models.remote import Source
from ..prune_config import DEFAULT_PER_CLASS, PruneConfig
from ..pruning import score
from ..tickets import directory
from ..tickets.ticket import Ticket
from ..tickets.ticket_file import PACKED
from ..training.resume import read_local

PruningBatches = list[tuple[Tensor, Tensor]]
_COLUMNS = ("layer", "dense")  # table columns that are not the name of a network


@dataclass(frozen=True)
class Network:
    """A model and its mask; the weights of a ticket are masked already."""

    name: str
    model: nn.Module
    mask: Mask | None = None  # None: dense
    header: Mapping[str, Any] = field(default_factory=dict)  # the ticket's metadata
    dense_name: str | None = None  # the network of this report with the same weights, unpruned
    saliency: Saliency | None = None
    batches: PruningBatches | None = None  # None: there are no data
    data: str = ""  # name of the data set of `batches`
    ticket: Ticket | None = None
    no_scores_reason: str = ""  # why there is no saliency

    @property
    def bits(self) -> Mask:
        """The mask; all ones for a dense network."""
        return Mask.ones(prunable(self.model)) if self.mask is None else self.mask

    @property
    def silent_classes(self) -> list[int]:
        """Classes for which the head keeps no weight."""
        return [] if self.mask is None else silent_classes(self.model, self.mask)

    @property
    def comparable_key(self) -> str:
        """Equal for networks with the same layers and image size; only those are compared."""
        layers = [(name, tuple(w.shape)) for name, w in self.bits.tensors_of(self.model).items()]
        return json.dumps([layers, list(self.input_size)])

    @property
    def input_size(self) -> tuple[int, ...]:
        return tuple(data_config(self.model)["input_size"])

    @property
    def architecture(self) -> str:
        record = self.header.get("model", {})
        names = record.get("architectures") or [type(self.model).__name__]
        return str(record.get("architecture") or names[0])


@dataclass(frozen=True)
class ReportRequest:
    """The networks of a report, how models are pruned for it, and the data."""

    names: Sequence[str]
    pruning: Sequence[PruneConfig] = ()  # one per method; models are pruned by each, for each seed
    seeds: Sequence[int] = (0,)
    data_seeds: Sequence[int] = (0,)
    data: str | None = None
    per_class: int = DEFAULT_PER_CLASS
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
        """The name of the directory, or of the repo without its owner; a longer one if two would be the same."""
        for label_of in (_short_label, shareable):
            labels = [label_of(other) for other in self.names]
            if labels.count(label_of(name)) == 1 and label_of(name) not in _COLUMNS:
                return label_of(name)
        return f"{_short_label(name)} ({self.names.index(name) + 1})"  # a full path must not be shown

    def load_batches(self, data: str | None, model: nn.Module, data_seed: int) -> PruningBatches | None:
        """The examples to prune and to measure with; None without data."""
        if data is None:
            return None
        return load_pruning_set(
            data, model, self.per_class, self.batch_size, data_seed,
            split=self.split, image_column=self.image_column, label_column=self.label_column,
        )  # fmt: skip


def check_names(request: ReportRequest) -> None:
    """Refuse a name that is neither a ticket nor a model, as far as that is known without network access."""
    for name in request.names:
        if request.names.count(name) > 1:
            raise ValueError(f"{name} is named twice; name it once")
        if Path(name).expanduser().is_dir() and is_ticket(name):
            continue
        try:
            check_name(name, pretrained=request.pretrained, architecture=request.architecture)
        except ValueError as error:
            raise ValueError(f"{error}; nor is there a ticket in a directory {name}") from error


def is_ticket(name: str, revision: str | None = None) -> bool:
    """True if a directory or a Hub repo holds a ticket, judged by its small files; timm/… never does."""
    if not Path(name).expanduser().is_dir() and (name.count("/") != 1 or name.startswith((".", "/", "~", "timm/"))):
        return False
    try:
        source = Source.of(name, revision=revision)
        path = source.file(directory.CONFIG)
        config = {} if path is None else json.loads(path.read_text(encoding="utf-8"))
        quantization = config.get("quantization_config") if isinstance(config, dict) else None
        ours = isinstance(quantization, dict) and quantization.get("quant_method") == "hf_px"
        return ours or source.file(PACKED) is not None
    except (TicketError, ValueError):
        return False  # loading it as a model gives a better error


def load_ticket(name: str, request: ReportRequest) -> Network:
    """A ticket with its data, and the scores that its method gives to its weights now."""
    ticket = Ticket.from_pretrained(name, revision=request.revision)
    model = ticket.to_model().to(request.device)
    mask = ticket.mask_for(model).to(request.device)
    own = (read_local(Path(name).expanduser()) or ticket.config.get("settings", {})).get("data")
    data = request.data or (own if isinstance(own, str) and _is_local(own) else None)
    try:
        batches = request.load_batches(data, model, request.data_seeds[0])
    except LabelsError as error:
        raise ValueError(
            f"{name} is a ticket with {num_classes(model)} classes, and {data} has more; name its own data with --data"
        ) from error
    scored = _ticket_scores(model, mask, batches, ticket.config)
    reason, found = (scored, None) if isinstance(scored, str) else ("", scored)
    shown = shareable(data or "")
    return Network(request.label(name), model, mask, ticket.config, None, found, batches, shown, ticket, reason)


def _ticket_scores(
    model: nn.Module, mask: Mask, batches: PruningBatches | None, header: Mapping[str, Any]
) -> Saliency | str:
    """The scores, or the reason why there are none."""
    method, norm = header.get("scorer"), header.get("settings", {}).get("norm")
    if not isinstance(method, str) or method not in scorers:
        return f"its method {method!r:.40} is not listed by hf-px scorers" if method else "it names no method"
    record = scorers[method]
    if batches is None and record.needs in ("inputs", "labels"):
        return f"{method} needs data, and the ticket's are not on this disk; name some with --data"
    norm = norm if isinstance(norm, str) and "norm" in record.options else None
    try:
        return saliency(score_with(model, method, batches, mask, norm=norm), mask, mask)
    except (HfPxError, ValueError) as error:  # trained weights may be out of the method's range
        return f"{method} cannot score it: {first_line(error)}"


def score_with(
    model: nn.Module, method: str | Scorer, batches: PruningBatches | None, mask: Mask, **options: Any
) -> dict[str, Tensor]:
    """The one place where a report scores."""
    return score(model, method, batches, mask=mask, input_size=tuple(data_config(model)["input_size"]), **options)


def _is_local(data: str) -> bool:
    """True if the data are on this disk: a ticket's data set is never downloaded without being asked for."""
    preset = preset_of(data)
    if preset is not None:
        return preset.name == "digits" or preset.local_copy() is not None
    return data != NOISE and Path(data).expanduser().exists()


def _short_label(name: str) -> str:
    return short_name(name) if Path(name).expanduser().exists() else name.rpartition("/")[2] or name
