"""CIFAR VGG-16: thirteen 3x3 convolutions with batch norm, max-pools between, one linear head.

Simonyan and Zisserman, Very Deep Convolutional Networks, ICLR 2015, configuration D, without its large linear
layers, as in the pruning-at-initialisation literature for 32x32 images: four max-pools, then the mean over the
remaining 2x2 pixels. 14,710,464 prunable weights plus 512 per class. Kaiming-normal weights.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .builder import NetworkBuilder
from .classifier import Classifier
from .resnet import CIFAR10_MEAN, CIFAR10_STD

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class ConvNormRelu(nn.Module):
    """y = relu(bn(conv(x)))."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


class VGG(Classifier):
    def __init__(self, num_classes: int, in_chans: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = in_chans
        for stage in STAGES:
            if layers:
                layers.append(nn.MaxPool2d(2))
            for outputs in stage:
                layers.append(ConvNormRelu(inputs, outputs))
                inputs = outputs
        self.features = nn.Sequential(*layers)
        self.end_with_head_(inputs, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.features(x)


vgg16_cifar = NetworkBuilder(
    "vgg16_cifar",
    "VGG-16 for 32x32 images",
    VGG,
    side=32,
    mean=CIFAR10_MEAN,
    std=CIFAR10_STD,
    first_conv="features.0.conv",
    num_classes=10,
)
