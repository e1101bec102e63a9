"""One name, any source: our own models, timm's, and transformers' image classifiers, on the Hub or on disk."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageClassification

from ..errors import TicketError, first_line
from ..models import MODELS
from .architecture import check_timm, transformers_class
from .remote import Source, explained


def load_model(name: str, pretrained: bool | None, num_classes: int | None, seed: int) -> nn.Module:
    """`resnet20`, a timm name, org/name on the Hub or a local directory; in eval mode, as transformers loads them."""
    if name in MODELS:
        if pretrained:
            raise ValueError(f"{name} has no pretrained weights; leave --pretrained out")
        return MODELS[name](num_classes=num_classes or 10, generator=torch.Generator().manual_seed(seed)).eval()
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"{name}: a directory without config.json; was it written by save_pretrained?")
        return _load_transformers(str(path), pretrained is not False, num_classes)
    if "/" in name and not name.startswith("timm/"):
        if name.count("/") > 1 or name.startswith((".", "/", "~")):
            raise ValueError(f"{name}: no such directory; a Hub model is written org/name")
        return _load_transformers(name, pretrained is not False, num_classes)
    return _load_timm(name.removeprefix("timm/"), bool(pretrained), num_classes)


def _load_timm(name: str, pretrained: bool, num_classes: int | None) -> nn.Module:
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, [*MODELS, *timm.list_models()], n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(
            f"unknown model {name!r}; {hint}timm.list_models() has them all; a Hub model is written org/name"
        )
    tag = name.partition(".")[2]
    if tag and name not in timm.list_pretrained():
        tags = [full for full in timm.list_pretrained() if full.startswith(name.partition(".")[0] + ".")]
        raise ValueError(f"unknown weights {name!r}; there are {', '.join(tags) or 'none for this model'}")
    head: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    try:
        model = timm.create_model(name, pretrained=pretrained, **head).eval()
    except OSError as error:  # no network, no such file on the Hub
        raise ValueError(f"{name}: no pretrained weights from the Hub: {first_line(error)}") from error
    return model if pretrained else _open_branches_(model)


def _open_branches_(model: nn.Module) -> nn.Module:
    """γ ← 1 where it starts at 0: timm closes residual branches so, and every path through one would score zero."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)
    norms = [module for module in model.modules() if isinstance(module, kinds) and module.weight is not None]
    closed = [module for module in norms if not module.weight.any()]
    for module in closed:
        nn.init.ones_(module.weight)
    if closed:
        print(
            f"hf-px: {len(closed)} normalisation layers start with scale 0 in timm; set to 1, as in the paper",
            file=sys.stderr,
        )
    return model


def _load_transformers(name: str, pretrained: bool, num_classes: int | None) -> nn.Module:
    try:
        config = AutoConfig.from_pretrained(name)
        if num_classes is not None:
            config.num_labels = num_classes  # as an argument it is ignored where the config has labels of its own
        if not pretrained:
            return AutoModelForImageClassification.from_config(config).eval()
        # mismatched sizes: a new head of another width is drawn at random
        fits = num_classes is None
        return AutoModelForImageClassification.from_pretrained(name, config=config, ignore_mismatched_sizes=not fits)
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}: not loaded as an image classifier of transformers: {first_line(error)}") from error


def load_base(record: Mapping[str, Any], source: Source, num_classes: int | None) -> tuple[nn.Module, list[str]]:
    """(the model of a ticket's record with the weights of its base, the tensors of a new head)."""
    base, revision = source.name, source.revision
    if source.file("config.json") is None:
        raise TicketError(f"{base}: has no config.json at {revision}; is it a model?")
    load = _transformers_base if "model_type" in record else _timm_base
    try:
        with explained(base, revision):
            return load(record, source, num_classes)
    except TicketError:
        raise
    except Exception as error:  # whatever a stranger's files do to timm and transformers
        raise TicketError(f"{base}: its weights do not load as the ticket's model ({first_line(error)})") from error


def _transformers_base(
    record: Mapping[str, Any], source: Source, num_classes: int | None
) -> tuple[nn.Module, list[str]]:
    base = source.name
    cls, settings = transformers_class(record, num_classes)
    model, info = cls.from_pretrained(
        base,
        revision=source.revision,
        token=source.token,
        cache_dir=source.cache_dir,
        local_files_only=source.local_files_only,
        config=settings,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    odd = sorted(info["missing_keys"])
    # of another size the head alone, in its first side, and only when asked for: the rest would be random weights
    for name, have, want in info["mismatched_keys"]:
        if num_classes is None or list(have[1:]) != list(want[1:]) or want[0] != num_classes:
            odd.append(name)
    # a head that the ticket's model has no use for may be left over, but no part of the body
    odd += sorted(name for name in info["unexpected_keys"] if name.startswith(f"{cls.base_model_prefix}."))
    if odd:
        raise TicketError(
            f"{base}: {odd[0]} is missing or of another shape; is the ticket one for another architecture?"
        )
    return model.eval(), sorted(name for name, *_ in info["mismatched_keys"])


def _timm_base(record: Mapping[str, Any], source: Source, num_classes: int | None) -> tuple[nn.Module, list[str]]:
    args = check_timm(record)
    base = source.name
    # fetched here, not by timm, which cannot be given a token
    weights = source.file("model.safetensors") or source.file("pytorch_model.bin")
    if weights is None:
        raise TicketError(
            f"{base}: has no weights at {source.revision}: neither model.safetensors nor pytorch_model.bin"
        )
    count = record.get("num_classes") if num_classes is None else num_classes
    model = timm.create_model(f"local-dir:{weights.parent}", pretrained=True, num_classes=count, **args)
    config: Any = model.pretrained_cfg
    if config.get("architecture") != record["architecture"]:
        raise TicketError(f"{base} is a {config.get('architecture')}, the ticket's is a {record['architecture']}")
    heads = config.get("classifier") or ()
    heads = [heads] if isinstance(heads, str) else heads
    new = count != config.get("num_classes")  # timm leaves out a head of another size
    if new and num_classes is None:
        raise TicketError(
            f"{base} has {config.get('num_classes')} classes, the ticket {count}, and no weights for them; pass "
            "num_classes= to have a head drawn at random"
        )
    own = dict(model.named_parameters())
    return model.eval(), [n for n in own if new and n.rpartition(".")[0] in heads]
