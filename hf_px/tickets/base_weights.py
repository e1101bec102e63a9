"""Weights of a mask-only ticket: its base model, downloaded from the Hub at one commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import timm
from torch import nn

from ..core.errors import TicketError, first_line
from ..models.architecture import check_timm, transformers_class
from ..models.remote import Source, hub_errors


def load_base(record: Mapping[str, Any], source: Source, num_classes: int | None) -> tuple[nn.Module, list[str]]:
    """(the model of a ticket's record with the weights of its base, names of the tensors of a new head)."""
    if source.file("config.json") is None:
        raise TicketError(f"{source.name}: has no config.json at {source.revision}; is it a model?")
    load = _transformers_base if "model_type" in record else _timm_base
    try:
        with hub_errors(source.name, source.revision):
            return load(record, source, num_classes)
    except TicketError:
        raise
    except Exception as error:  # timm and transformers may raise anything on untrusted files
        raise TicketError(f"{source.name}: its weights do not fit the ticket's model ({first_line(error)})") from error


def _transformers_base(
    record: Mapping[str, Any], source: Source, num_classes: int | None
) -> tuple[nn.Module, list[str]]:
    model_class, config = transformers_class(record, num_classes)
    model, info = model_class.from_pretrained(
        source.name,
        revision=source.revision,
        token=source.token,
        cache_dir=source.cache_dir,
        local_files_only=source.local_files_only,
        config=config,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    odd = sorted(info["missing_keys"])
    # only the head may differ, in its number of classes, and only if `num_classes` is given: any other tensor would
    # be left with random weights
    for name, have, want in info["mismatched_keys"]:
        if num_classes is None or list(have[1:]) != list(want[1:]) or want[0] != num_classes:
            odd.append(name)
    # an unused head may be left over, but no part of the body
    odd += sorted(name for name in info["unexpected_keys"] if name.startswith(f"{model_class.base_model_prefix}."))
    if odd:
        raise TicketError(
            f"{source.name}: {odd[0]} is missing or has another shape; is the ticket for another architecture?"
        )
    return model.eval(), sorted(name for name, *_ in info["mismatched_keys"])


def _timm_base(record: Mapping[str, Any], source: Source, num_classes: int | None) -> tuple[nn.Module, list[str]]:
    model_args = check_timm(record)
    base = source.name
    weights = source.weights()  # downloaded here, because timm takes no token
    classes = record.get("num_classes") if num_classes is None else num_classes
    model = timm.create_model(f"local-dir:{weights.parent}", pretrained=True, num_classes=classes, **model_args)
    config: Any = model.pretrained_cfg
    if config.get("architecture") != record["architecture"]:
        raise TicketError(f"{base} is a {config.get('architecture')}, the ticket's is a {record['architecture']}")
    heads = config.get("classifier") or ()
    heads = [heads] if isinstance(heads, str) else heads
    new_head = classes != config.get("num_classes")  # timm does not load a head of another size
    if new_head and num_classes is None:
        raise TicketError(
            f"{base} has {config.get('num_classes')} classes, the ticket {classes}, and no weights for them; pass "
            "`num_classes` for a newly initialised head"
        )
    return model.eval(), [n for n, _ in model.named_parameters() if new_head and n.rpartition(".")[0] in heads]
