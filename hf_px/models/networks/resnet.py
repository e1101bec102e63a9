"""ResNets for small images: 3x3 stem, basic blocks, pool, one linear head.

resnet20        three stages of three blocks at 16, 32 and 64 channels, 32x32 images; 270,896 prunable weights at ten
                classes. He et al., Deep Residual Learning for Image Recognition, CVPR 2016, section 4.2
resnet18_tiny   four stages of two blocks at 64, 128, 256 and 512 channels, 64x64 images: the ResNet-18 of ImageNet
                with a 3x3 stem of stride 1 and without its max-pool

Where width and stride change, the shortcut is a 1x1 convolution as in the pruning-at-initialisation literature, or has
no weights as in He et al.'s CIFAR networks (their option A: `resnet20_a`). Kaiming-normal weights,
W ~ N(0, 2 / fan_in), as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn

from .builder import NetworkBuilder
from .classifier import Classifier

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)


class Subsample(nn.Module):
    """Option A: every other pixel, with channels of zeros added, half of them before and half after."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels  # to add

    def forward(self, x: Tensor) -> Tensor:
        before = self.channels // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, before, self.channels - before))


class BasicBlock(nn.Module):
    """y = relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x))."""

    def __init__(self, inputs: int, outputs: int, stride: int, learned: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = (
                nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
                if learned
                else Subsample(outputs - inputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class SmallResNet(Classifier):
    """`depth` basic blocks at each of `widths`; the first block of every stage but the first halves the image."""

    def __init__(
        self, widths: Sequence[int], depth: int, num_classes: int, in_chans: int, learned: bool = True
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_chans, widths[0], 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(widths[0])
        each = [width for width in widths for _ in range(depth)]
        self.blocks = nn.Sequential(
            *(BasicBlock(i, o, stride=1 if i == o else 2, learned=learned) for i, o in zip([widths[0], *each], each))
        )
        self.end_with_head_(widths[-1], num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.blocks(F.relu(self.bn(self.conv(x))))


resnet20 = NetworkBuilder(
    "resnet20_cifar",
    "ResNet-20 for 32x32 images",
    lambda classes, channels: SmallResNet((16, 32, 64), 3, classes, channels),
    side=32,
    mean=CIFAR10_MEAN,
    std=CIFAR10_STD,
    first_conv="conv",
    num_classes=10,
)
resnet20_a = replace(
    resnet20,
    name="resnet20_cifar_a",
    summary="ResNet-20 of He et al., with shortcuts without weights",
    make=lambda classes, channels: SmallResNet((16, 32, 64), 3, classes, channels, learned=False),
)
resnet18_tiny = NetworkBuilder(
    "resnet18_tiny",
    "ResNet-18 for the 64x64 images of Tiny-ImageNet",
    lambda classes, channels: SmallResNet((64, 128, 256, 512), 2, classes, channels),
    side=64,
    mean=(0.480, 0.448, 0.398),
    std=(0.277, 0.269, 0.282),
    first_conv="conv",
    num_classes=200,
)
