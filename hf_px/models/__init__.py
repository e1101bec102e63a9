"""Networks that neither timm nor the Hub has.

MODELS has them by the names that users say, ARCHITECTURES by those under which timm knows them and tickets store them.
"""

from __future__ import annotations

from collections.abc import Callable

from .classifier import Classifier, kaiming_normal_
from .deeplab import DEEPLABS, DeepLabV3Plus
from .resnet import SmallResNet, resnet18_tiny, resnet20, resnet20_a
from .vgg import VGG, vgg16_cifar

MODELS: dict[str, Callable[..., Classifier | DeepLabV3Plus]] = {
    "resnet20": resnet20,
    "vgg16-cifar": vgg16_cifar,
    "resnet18-tiny": resnet18_tiny,
    **{name.replace("_", "-"): build for name, build in DEEPLABS.items()},
}
ARCHITECTURES: dict[str, Callable[..., Classifier | DeepLabV3Plus]] = {
    "resnet20_cifar": resnet20,
    "resnet20_cifar_a": resnet20_a,
    "vgg16_cifar": vgg16_cifar,
    "resnet18_tiny": resnet18_tiny,
    **DEEPLABS,
}
SEGMENTERS = frozenset(DEEPLABS)  # those of ARCHITECTURES that answer for every pixel
# in tickets that were written before timm knew these networks
OLD_NAMES = {"resnet20": "resnet20_cifar"}

__all__ = [
    "ARCHITECTURES",
    "MODELS",
    "OLD_NAMES",
    "SEGMENTERS",
    "VGG",
    "Classifier",
    "DeepLabV3Plus",
    "SmallResNet",
    "kaiming_normal_",
    "resnet18_tiny",
    "resnet20",
    "resnet20_a",
    "vgg16_cifar",
]
