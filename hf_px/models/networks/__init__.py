"""Networks that neither timm nor the Hub has.

MODELS has them by the names that users say, ARCHITECTURES by those under which timm knows them and tickets store them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .classifier import Classifier, kaiming_normal_
from .deeplab import DEEPLABS, PREFIX, DeepLabV3Plus
from .original_resnet import resnet50_original
from .resnet import SmallResNet, resnet18_tiny, resnet20, resnet20_a
from .vgg import VGG, vgg16_cifar

MODELS: dict[str, Callable[..., Any]] = {
    "resnet20": resnet20,
    "vgg16-cifar": vgg16_cifar,
    "resnet18-tiny": resnet18_tiny,
    "resnet50-original": resnet50_original,
    **{name.replace("_", "-"): build for name, build in DEEPLABS.items()},
}
ARCHITECTURES: dict[str, Callable[..., Any]] = {
    "resnet20_cifar": resnet20,
    "resnet20_cifar_a": resnet20_a,
    "vgg16_cifar": vgg16_cifar,
    "resnet18_tiny": resnet18_tiny,
    "resnet50_original": resnet50_original,
    **DEEPLABS,
}
SEGMENTERS = frozenset(DEEPLABS)  # those that answer for every pixel
# in tickets that were written before timm knew these networks
OLD_NAMES = {"resnet20": "resnet20_cifar"}


def encoder_of(name: str) -> str | None:
    """timm's name of the encoder, if a model of that name is a segmenter of ours; both spellings will do."""
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
    "SmallResNet",
    "encoder_of",
    "kaiming_normal_",
    "resnet18_tiny",
    "resnet20",
    "resnet20_a",
    "resnet50_original",
    "vgg16_cifar",
]
