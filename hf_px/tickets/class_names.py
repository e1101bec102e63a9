"""Names of the classes in the record of a model, where its own library looks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ..core.errors import TicketError


def check_class_names(names: Sequence[str] | None, model: nn.Module) -> tuple[str, ...] | None:
    """The names, or an error if they are not one for each class of the model."""
    if names is None:
        return None
    from ..data.model_inputs import num_classes  # here: loading a ticket does not need it

    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"`class_names`: expected a list of strings, got {names!r:.100}")
    count = num_classes(model)
    if count and len(names) != count:
        raise TicketError(f"`class_names`: {len(names)} names, but the model has {count} classes; give one for each")
    return tuple(names)


def with_class_names(record: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    """The record with these names: transformers' id2label, label_names in timm's pretrained_cfg, else class_names."""
    if names is None:
        return dict(record)
    if "model_type" in record:
        labels = {str(i): name for i, name in enumerate(names)}
        return {**record, "id2label": labels, "label2id": {name: i for i, name in enumerate(names)}}
    if "pretrained_cfg" in record:
        return {**record, "pretrained_cfg": {**record["pretrained_cfg"], "label_names": list(names)}}
    return {**record, "class_names": list(names)}


def recorded_names(record: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The names in an untrusted record; None if it has none."""
    labels = record.get("id2label")
    if isinstance(labels, Mapping) and set(labels) == {str(i) for i in range(len(labels))}:
        names: Any = [labels[str(i)] for i in range(len(labels))]
    else:
        config = record.get("pretrained_cfg")
        names = config.get("label_names") if isinstance(config, Mapping) else record.get("class_names")
    good = isinstance(names, list) and bool(names) and all(isinstance(name, str) for name in names)
    return tuple(names) if good else None
