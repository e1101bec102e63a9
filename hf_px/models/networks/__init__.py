"""Networks that neither timm nor the Hub has: each is a NetworkBuilder.

Imports torch, and nothing else of hf_px.
MODELS lists them by the short names that users type, ARCHITECTURES by their names in timm's registry and in tickets.
"""

from __future__ import annotations

from .builder import NetworkBuilder, kaiming_normal_
from .classifier import Classifier
from .deeplab import DEEPLABS, PREFIX, DeepLabV3Plus
from .original_resnet import resnet50_original
from .resnet import SmallResNet, resnet18_tiny, resnet20, resnet20_a
from .vgg import VGG, vgg16_cifar

ARCHITECTURES: dict[str, NetworkBuilder] = {
    builder.name: builder for builder in (resnet20, resnet20_a, vgg16_cifar, resnet18_tiny, resnet50_original)
}
ARCHITECTURES |= DEEPLABS
MODELS: dict[str, NetworkBuilder] = {
    "resnet20": resnet20,
    "vgg16-cifar": vgg16_cifar,
    "resnet18-tiny": resnet18_tiny,
    "resnet50-original": resnet50_original,
    **{name.replace("_", "-"): builder for name, builder in DEEPLABS.items()},
}
SEGMENTERS = frozenset(DEEPLABS)
OLD_NAMES = {"resnet20": "resnet20_cifar"}  # in tickets from before these networks were in timm's registry


def encoder_of(name: str) -> str | None:
    """timm's name of the encoder of one of our segmenters, given in either spelling; None for other models."""
    name = name.removeprefix("timm/").replace("-", "_")
    return name.removeprefix(PREFIX) if name in SEGMENTERS else None


__all__ = [
    "ARCHITECTURES",
    "MODELS",
    "OLD_NAMES",
    "PREFIX",
    "SEGMENTERS",
    "VGG",
    "Classifier",
    "DeepLabV3Plus",
    "NetworkBuilder",
    "SmallResNet",
    "encoder_of",
    "kaiming_normal_",
    "resnet18_tiny",
    "resnet20",
    "resnet20_a",
    "resnet50_original",
    "vgg16_cifar",
]
