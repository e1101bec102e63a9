"""Networks that neither timm nor the Hub has, by the names that the command line knows them under."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from .resnet_cifar import ResNetCifar, resnet20

MODELS: dict[str, Callable[..., nn.Module]] = {"resnet20": resnet20}

__all__ = ["MODELS", "ResNetCifar", "resnet20"]
