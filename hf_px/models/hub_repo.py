"""Models on the Hub or in a directory that say in config.json what they are: transformers' and timm's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import timm
from huggingface_hub import ModelCard
from torch import nn
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageClassification

from ..core.errors import TicketError, first_line
from .architecture import check_timm
from .config_marks import NOT_FOR_TIMM, TICKET
from .image_config import image_config
from .loaded_model import How, Loaded, open_branches_, plainly, say
from .remote import Source


def from_repo(name: str, trained: bool, how: How) -> Loaded:
    with plainly(name):
        source = Source.of(name, revision=how.revision, token=how.token)
        path = source.file("config.json")
        if path is None:
            raise TicketError("no config.json; for a repo of one weights file, name its architecture")
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise TicketError(f"config.json is damaged ({first_line(error)})") from error
        if not isinstance(config, dict) or not {"model_type", "architecture"} & config.keys():
            raise TicketError("config.json names neither a model_type nor an architecture")
        marks = config.get("quantization_config")
        by = marks.get("quant_method") if isinstance(marks, dict) else None
        if by == TICKET or str(config.get("architecture", "")).endswith(NOT_FOR_TIMM):
            raise TicketError(
                f"a ticket, pruned already; hf_px.from_pretrained({name!r}) loads it. To prune anew, name its base"
            )
        load = _transformers_repo if "model_type" in config else _timm_repo
        model, new_head = load(source, config, trained, how)
    on_hub = trained and not source.is_dir
    return Loaded(
        model.eval(),
        base=name if on_hub else None,
        revision=source.revision if on_hub else None,
        license=_license(source, config) if trained else None,
        trained=trained,
        new_head=new_head,
    )


def _license(source: Source, config: Mapping[str, Any]) -> str | None:
    """What the card says, or else timm's record, which may have it from the architecture's first weights."""
    try:
        card = source.file("README.md")
        found = None if card is None else ModelCard.load(card, ignore_metadata_errors=True).data.license
    except Exception:  # a card is a stranger's text, and a model as good without one
        found = None
    if found is None and isinstance(told := config.get("pretrained_cfg"), Mapping):
        found = told.get("license")
    return found if isinstance(found, str) else None  # several licences are for the user to read


def _timm_repo(source: Source, config: Mapping[str, Any], trained: bool, how: How) -> tuple[nn.Module, tuple[str, ...]]:
    check_timm(config)
    weights = [source.file(file) for file in ("model.safetensors", "pytorch_model.bin")] if trained else []
    if trained and not any(weights):
        raise TicketError("no weights: neither model.safetensors nor pytorch_model.bin")
    where = next((path.parent for path in weights if path), None) or source.file("config.json").parent  # type: ignore[union-attr]
    with how.drawing():
        classes = None if trained else how.num_classes
        model: Any = timm.create_model(f"local-dir:{where}", pretrained=trained, num_classes=classes)
    told = {key: value for key, value in model.pretrained_cfg.items() if key not in ("file", "source")}
    # JSON has no tuples, timm's own records do
    model.pretrained_cfg = {key: tuple(value) if isinstance(value, list) else value for key, value in told.items()}
    return (model, how.with_head_(model)) if trained else (open_branches_(model), ())


def _transformers_repo(
    source: Source, told: Mapping[str, Any], trained: bool, how: How
) -> tuple[nn.Module, tuple[str, ...]]:
    name = str(source.path) if source.is_dir else source.name
    # no code of strangers, nor a question whether to run it
    where: dict[str, Any] = {"revision": source.revision or "main", "token": source.token, "trust_remote_code": False}
    config = AutoConfig.from_pretrained(name, **where)
    if how.num_classes is not None:
        config.num_labels = how.num_classes  # as an argument it is ignored where the config has labels of its own
    drawn: list[str] = []
    with how.drawing():
        if not trained:
            model = AutoModelForImageClassification.from_config(config)
        else:
            model, info = AutoModelForImageClassification.from_pretrained(
                name,
                config=config,
                ignore_mismatched_sizes=how.num_classes is not None,
                output_loading_info=True,
                **where,
            )
            # of another size the head alone, in its first side; missing, what lies outside of the body
            other = {key for key, have, want in info["mismatched_keys"] if list(have[1:]) == list(want[1:])}
            drawn = sorted([*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])])
            if odd := [key for key in drawn if key.startswith(f"{model.base_model_prefix}.") and key not in other]:
                raise TicketError(f"{odd[0]} is missing or of another shape; is the repo damaged?")
            for key in sorted(info["unexpected_keys"]):
                say(f"{source.name}: {key} left over, not loaded")
            if drawn and how.num_classes is None:
                say(f"{source.name}: has no head; {', '.join(drawn)} drawn at random")
    if images := _images_of(name, source, where, config):
        model.image_config = images
    return model, tuple(drawn)


def _images_of(name: str, source: Source, where: Mapping[str, Any], config: Any) -> dict[str, Any] | None:
    """What the repo's image processor does; nothing where it has none."""
    if not any(source.file(file) for file in ("preprocessor_config.json", "processor_config.json")):
        return None
    try:
        told = AutoImageProcessor.from_pretrained(name, **where).to_dict()
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        say(f"{source.name}: its image processor is not understood ({first_line(error)}); ImageNet's values are taken")
        return None
    return image_config(told, channels=getattr(config, "num_channels", 3))
