"""What a model expects of its data: image size, mean and std, and the number of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def data_config(model: nn.Module) -> dict[str, Any]:
    """Image settings of the model under timm's names: input_size, mean, std, interpolation, crop_pct, crop_mode."""
    from timm.data import resolve_data_config, resolve_model_data_config

    # set by hf_px on transformers models, which do not hold their image processor
    image_config = getattr(model, "image_config", None)
    if isinstance(image_config, Mapping):
        return resolve_data_config(pretrained_cfg=dict(image_config))
    model = getattr(model, "timm_model", model)  # transformers' wrapper around timm models
    if isinstance(getattr(model, "pretrained_cfg", None), Mapping):
        return resolve_model_data_config(model)
    config = getattr(model, "config", None)
    if config is None:
        raise ValueError(
            f"{type(model).__name__} has neither timm's pretrained_cfg nor a transformers config, so the images it "
            "expects are unknown; make the batches yourself"
        )
    config = getattr(config, "vision_config", config)
    size = getattr(config, "image_size", None) or 224  # configs of ResNet and ConvNeXt have no size
    height, width = (size, size) if isinstance(size, int) else size
    # without pretrained_cfg timm uses ImageNet's mean and std
    return resolve_data_config({"input_size": (getattr(config, "num_channels", 3), height, width)})


def num_classes(model: nn.Module) -> int | None:
    """Number of classes of the model; None if unknown, 0 if it has no head."""
    for owner, name in ((model, "num_classes"), (getattr(model, "config", None), "num_labels")):
        found = getattr(owner, name, None)
        if isinstance(found, int):
            return found
    return None


class LabelsError(ValueError):
    """The data has more classes than the model."""


def check_labels(labels: Tensor, model: nn.Module) -> None:
    """Raise LabelsError for labels beyond the model's classes."""
    classes = num_classes(model)
    high = int(labels.max()) if len(labels) else 0
    if classes and high >= classes:
        raise LabelsError(
            f"labels go up to {high}, but the model has {classes} classes; set `num_classes` to {high + 1}"
        )
