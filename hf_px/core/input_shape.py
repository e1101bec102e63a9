"""input_shape(model): the shape of one input, without a forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn


def input_shape(model: nn.Module) -> tuple[int, ...] | None:
    """Shape of one input, from the config of timm or transformers or from a first linear layer; None if unknown."""
    for record in (getattr(model, "pretrained_cfg", None), getattr(model, "default_cfg", None)):
        config = record if isinstance(record, Mapping) else vars(record or object)
        if size := config.get("input_size"):
            # timm's config has 3 channels even for a model created with in_chans=1; its stem is right
            stem = config.get("first_conv")
            conv = dict(model.named_modules()).get(stem) if isinstance(stem, str) else None
            return (getattr(conv, "in_channels", size[0]), *size[1:])
    of_transformers: Any = getattr(model, "config", None)
    if hasattr(of_transformers, "num_channels"):
        # ResNet and others take any size and declare none: 224, as for ImageNet
        side = getattr(of_transformers, "image_size", None) or 224
        return (of_transformers.num_channels, *(side if isinstance(side, (list, tuple)) else (side, side)))
    first = next((m for m in model.modules() if isinstance(m, (nn.Linear, nn.modules.conv._ConvNd))), None)
    return (first.in_features,) if isinstance(first, nn.Linear) else None
