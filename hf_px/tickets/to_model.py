"""From the contents of a ticket file to a module: built by its record, filled with θ ⊙ M, in eval mode."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import timm
import torch
from torch import nn
from transformers.modeling_utils import PreTrainedModel

from ..core.errors import TicketError, first_line
from ..models import architecture
from ..models.remote import Source, hub_errors, is_commit
from ..sparse_training import violations
from .directory import mask_for
from .ticket_file import Contents
from .transformers_quantizer import attach_


def fill_(model: nn.Module, contents: Contents) -> nn.Module:
    """Load the ticket's weights, if it holds any, and its mask into a module of the user's own."""
    try:
        if contents.tensors is not None:
            model.load_state_dict(contents.state_dict())
        return contents.model_mask().apply_(model)
    except (RuntimeError, ValueError) as error:
        raise TicketError(f"the ticket does not fit this {type(model).__name__}: {error}") from error


def build_from_contents(contents: Contents, num_classes: int | None) -> nn.Module:
    """The module of a ticket that holds its weights."""
    if contents.weights == "dense":  # in a packed file pruned weights are zero by construction
        for name, count in violations(contents.tensors or {}, contents.mask).items():
            raise TicketError(f"{name}: {count:,} pruned weights are not zero; the file is damaged")
    state = contents.state_dict()
    new_head = architecture.new_head(contents.model, state, num_classes)
    if not new_head and not contents.tied:
        return _with_mask(architecture.filled(contents.model, state), contents)
    model = architecture.build(contents.model, num_classes)
    architecture.check_kinds(model, state)
    # copied, not assigned: assigning would untie tied tensors
    model.to(next((t.dtype for t in state.values() if t.is_floating_point()), torch.float32))
    fresh = model.state_dict()
    model.load_state_dict(state | {name: fresh[name] for name in new_head})
    _warn_new_head(new_head, num_classes)
    return _with_mask(model, contents)


def build_from_base(contents: Contents, num_classes: int | None, download: Mapping[str, Any]) -> nn.Module:
    """The module of a mask-only ticket: weights of its base at the recorded commit, with the mask applied.

    `download` holds the arguments of Source: token, cache_dir, local_files_only.
    """
    base, revision = contents.ticket.get("base"), contents.ticket.get("base_revision")
    if not isinstance(base, str) or not is_commit(revision):
        raise TicketError("a mask without weights that names no base model to take them from; the file is damaged")
    mask = contents.model_mask()
    # the untrusted record is checked before anything is downloaded; a model has more tensors than its mask
    expected = architecture.shapes(contents.model, num_classes, tensors=10 * len(mask.bits))
    for name in mask.bits:
        if name not in expected:
            raise TicketError(f"{name}: has a mask, but the architecture has no such tensor; is it for another one?")
    weights = f"the weights of this ticket are those of {base} at commit {revision}"
    try:
        source = Source.of(base, revision=revision, **download)
        model, new_head = _load_base(contents.model, source, num_classes)
    except (TicketError, OSError) as error:
        raise TicketError(f"{weights}, which are not available: {error}") from error
    _warn_new_head(new_head, num_classes)
    fitting = mask_for(mask, model)
    if misfits := sorted(mask.bits.keys() - fitting.bits.keys() - set(new_head)):
        raise TicketError(f"{misfits[0]}: the mask does not fit {base}; is the ticket for another architecture?")
    try:
        fitting.apply_(model)
    except ValueError as error:
        raise TicketError(f"{base} is not the base of this ticket: {error}") from error
    return _with_mask(model, contents)


def _load_base(record: Mapping[str, Any], source: Source, num_classes: int | None) -> tuple[nn.Module, list[str]]:
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
    model_class, config = architecture.transformers_class(record, num_classes)
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
    model_args = architecture.check_timm(record)
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


def _with_mask(model: nn.Module, contents: Contents) -> nn.Module:
    """Attach the mask to a transformers model, so that its own save_pretrained keeps it."""
    own = dict(model.named_parameters(remove_duplicate=False))
    masked = [contents.renamed.get(name, name) for name in contents.names]
    if odd := [name for name in masked if name not in own]:
        raise TicketError(f"{odd[0]}: has a mask, but is not a parameter of the model; the file is damaged")
    if isinstance(model, PreTrainedModel):
        attach_(model, mask_for(contents.model_mask(), model), contents.ticket)
    return model


def _warn_new_head(names: list[str], num_classes: int | None) -> None:
    if names:
        warnings.warn(
            f"{', '.join(names)} newly initialised for {num_classes} classes: train the head before use; it is not "
            "pruned, and ticket.mask_for(model) is the mask of the other tensors",
            stacklevel=4,
        )
