"""What a model expects of its data: images of which size, mean and deviation, and how many classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def data_config(model: nn.Module) -> dict[str, Any]:
    """The images that the model expects, in timm's words: input_size, mean, std, interpolation, crop_pct, crop_mode."""
    from timm.data import resolve_data_config, resolve_model_data_config

    # transformers models do not carry their image processor: who loads one notes here what it says
    told = getattr(model, "image_config", None)
    if isinstance(told, Mapping):
        return resolve_data_config(pretrained_cfg=dict(told))
    model = getattr(model, "timm_model", model)  # transformers' wrapper around timm models
    if isinstance(getattr(model, "pretrained_cfg", None), Mapping):
        return resolve_model_data_config(model)
    config = getattr(model, "config", None)
    if config is None:
        raise ValueError(
            f"{type(model).__name__} does not say what images it expects: it has neither timm's pretrained_cfg nor a "
            "transformers config; make the batches yourself"
        )
    config = getattr(config, "vision_config", config)
    size = getattr(config, "image_size", None) or 224  # ResNet and ConvNeXt take any size and name none
    height, width = (size, size) if isinstance(size, int) else size
    # no pretrained_cfg: mean and std are ImageNet's
    return resolve_data_config({"input_size": (getattr(config, "num_channels", 3), height, width)})


def num_classes(model: nn.Module) -> int | None:
    """How many classes the model tells apart; None if it does not say, 0 if it has no head."""
    for owner, name in ((model, "num_classes"), (getattr(model, "config", None), "num_labels")):
        found = getattr(owner, name, None)
        if isinstance(found, int):
            return found
    return None


class LabelsError(ValueError):
    """The data has classes that the model has not."""


def check_labels(labels: Tensor, model: nn.Module) -> None:
    """Refuse labels that the model's head does not have."""
    classes = num_classes(model)
    high = int(labels.max()) if len(labels) else 0
    if classes and high >= classes:
        raise LabelsError(
            f"labels run to {high}, but the model has {classes} classes; "
            f"give it num_classes={high + 1} (--num-classes {high + 1})"
        )
