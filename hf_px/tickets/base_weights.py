"""The base of a ticket without weights: the model of its record, with what the Hub has at one commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import timm
from torch import nn

from ..core.errors import TicketError, first_line
from ..models.architecture import check_timm, transformers_class
from ..models.remote import Source, explained


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
