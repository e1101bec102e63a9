"""Networks that neither timm nor the Hub has.

MODELS has them by the names that users say, ARCHITECTURES by those under which timm knows them and tickets store them.
"""

from __future__ import annotations

from collections.abc import Callable

from .classifier import Classifier, kaiming_normal_
from .resnet import SmallResNet, resnet18_tiny, resnet20, resnet20_a
from .vgg import VGG, vgg16_cifar

MODELS: dict[str, Callable[..., Classifier]] = {
    "resnet20": resnet20,
    "vgg16-cifar": vgg16_cifar,
    "resnet18-tiny": resnet18_tiny,
}
ARCHITECTURES: dict[str, Callable[..., Classifier]] = {
    "resnet20_cifar": resnet20,
    "resnet20_cifar_a": resnet20_a,
    "vgg16_cifar": vgg16_cifar,
    "resnet18_tiny": resnet18_tiny,
}
# in tickets that were written before timm knew these networks
OLD_NAMES = {"resnet20": "resnet20_cifar"}

__all__ = [
    "ARCHITECTURES",
    "MODELS",
    "OLD_NAMES",
    "VGG",
    "Classifier",
    "SmallResNet",
    "kaiming_normal_",
    "resnet18_tiny",
    "resnet20",
    "resnet20_a",
    "vgg16_cifar",
]
