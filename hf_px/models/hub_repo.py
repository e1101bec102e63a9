"""Models of transformers and timm, in a directory or on the Hub, described by their config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
from huggingface_hub import ModelCard
from torch import nn
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageClassification

from ..core.errors import TicketError, first_line
from .architecture import check_timm
from .config_marks import NOT_FOR_TIMM, TICKET
from .image_config import PROCESSOR, from_processor
from .loaded_model import LoadedModel, LoadOptions, loading_errors, note, open_branches_
from .remote import Source


def from_repo(name: str, trained: bool, options: LoadOptions) -> LoadedModel:
    with loading_errors(name):
        source = Source.of(name, revision=options.revision, token=options.token)
        path = source.file("config.json")
        if path is None:
            raise TicketError("no config.json; for a repo of one weights file, set `architecture`")
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise TicketError(f"config.json is damaged ({first_line(error)})") from error
        if not isinstance(config, dict) or not {"model_type", "architecture"} & config.keys():
            raise TicketError("config.json has neither model_type nor architecture")
        quantization = config.get("quantization_config")
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        if method == TICKET or str(config.get("architecture", "")).endswith(NOT_FOR_TIMM):
            raise TicketError(
                "a ticket, already pruned: hf-px info and hf-px predict, or hf_px.from_pretrained in Python, read it. "
                "To prune again, name its base"
            )
        if "model_type" in config:
            model, new_head = _transformers_repo(source, trained, options)
        else:
            check_timm(config)
            model, new_head = _timm_repo((source.weights() if trained else path).parent, trained, options)
    on_hub = trained and not source.is_dir
    return LoadedModel(
        model.eval(),
        base=name if on_hub else None,
        revision=source.revision if on_hub else None,
        license=_license(source, config) if trained else None,
        trained=trained,
        new_head=new_head,
    )


def _license(source: Source, config: Mapping[str, Any]) -> str | None:
    """The card's licence; else timm's, which may be that of the architecture's first weights."""
    try:
        card = source.file("README.md")
        found = None if card is None else ModelCard.load(card, ignore_metadata_errors=True).data.license
    except Exception:  # an unreadable card is no reason to refuse the model
        found = None
    if found is None and isinstance(pretrained_cfg := config.get("pretrained_cfg"), Mapping):
        found = pretrained_cfg.get("license")
    return found if isinstance(found, str) else None  # a list of licences needs a human reader


def _timm_repo(folder: Path, trained: bool, options: LoadOptions) -> tuple[nn.Module, tuple[str, ...]]:
    with options.seeded():
        classes = None if trained else options.num_classes
        model: Any = timm.create_model(f"local-dir:{folder}", pretrained=trained, num_classes=classes)
    # lists become tuples, as in timm's own pretrained_cfg
    model.pretrained_cfg = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in model.pretrained_cfg.items()
        if key not in ("file", "source")
    }
    return (model, options.with_head_(model)) if trained else (open_branches_(model), ())


def _transformers_repo(source: Source, trained: bool, options: LoadOptions) -> tuple[nn.Module, tuple[str, ...]]:
    name = str(source.path) if source.is_dir else source.name
    # trust_remote_code=False: otherwise transformers asks whether to run the repo's code
    where: dict[str, Any] = {"revision": source.revision or "main", "token": source.token, "trust_remote_code": False}
    config = AutoConfig.from_pretrained(name, **where)
    if options.num_classes is not None:
        config.num_labels = options.num_classes  # as an argument it is ignored if the config has its own labels
    new_head: list[str] = []
    with options.seeded():
        if not trained:
            model = AutoModelForImageClassification.from_config(config)
        else:
            model, info = AutoModelForImageClassification.from_pretrained(
                name,
                config=config,
                ignore_mismatched_sizes=options.num_classes is not None,
                output_loading_info=True,
                **where,
            )
            # only the number of classes may differ, and only tensors outside the body may be missing
            resized = {key for key, have, want in info["mismatched_keys"] if list(have[1:]) == list(want[1:])}
            new_head = sorted([*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])])
            body = f"{model.base_model_prefix}."
            if odd := [key for key in new_head if key.startswith(body) and key not in resized]:
                raise TicketError(f"{odd[0]} is missing or has another shape; is the repo damaged?")
            for key in sorted(info["unexpected_keys"]):
                note(f"{source.name}: {key} is not used")
            if new_head and options.num_classes is None:
                note(f"{source.name}: has no head; {', '.join(new_head)} initialised at random")
    if images := _processor_images(name, source, where, config):
        model.image_config = images
    return model, tuple(new_head)


def _processor_images(name: str, source: Source, where: Mapping[str, Any], config: Any) -> dict[str, Any] | None:
    """Image settings of the repo's image processor; None if it has none."""
    if not any(source.file(file) for file in (PROCESSOR, "processor_config.json")):
        return None
    try:
        processor = AutoImageProcessor.from_pretrained(name, **where).to_dict()
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        note(f"{source.name}: unknown image processor ({first_line(error)}); ImageNet's mean, std and size are used")
        return None
    return from_processor(processor, channels=getattr(config, "num_channels", 3))
