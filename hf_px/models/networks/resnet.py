"""ResNets for small images: 3x3 stem, basic blocks, pool, one linear head.

resnet20        three stages of three blocks at 16, 32 and 64 channels, 32x32 images; 270,896 prunable weights at ten
                classes. He et al., Deep Residual Learning for Image Recognition, CVPR 2016, section 4.2
resnet18_tiny   four stages of two blocks at 64, 128, 256 and 512 channels, 64x64 images: the ResNet-18 of ImageNet
                with a 3x3 stem of stride 1 and without its max-pool

Where width and stride change, the shortcut is a 1x1 convolution as in the pruning-at-initialisation literature, or
nothing to learn as in He et al.'s CIFAR networks (their option A: `resnet20_a`). Kaiming-normal weights,
W ~ N(0, 2 / fan_in), as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .classifier import Classifier, images, kaiming_normal_

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)
TINY_MEAN = (0.480, 0.448, 0.398)
TINY_STD = (0.277, 0.269, 0.282)


class Subsample(nn.Module):
    """Option A: every other pixel, and channels of zeros, half of them before and half after."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels  # to add

    def forward(self, x: Tensor) -> Tensor:
        before = self.channels // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, before, self.channels - before))


class BasicBlock(nn.Module):
    """y = relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x))."""

    def __init__(self, inputs: int, outputs: int, stride: int, learned: bool = True) -> None:
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


def resnet20(num_classes: int = 10, in_chans: int = 3, generator: torch.Generator | None = None) -> SmallResNet:
    """ResNet-20 for 32x32 images, Kaiming-normal weights, drawn from `generator` if given."""
    return _cifar("resnet20_cifar", True, num_classes, in_chans, generator)


def resnet20_a(num_classes: int = 10, in_chans: int = 3, generator: torch.Generator | None = None) -> SmallResNet:
    """ResNet-20 as He et al. had it: its shortcuts have no weights."""
    return _cifar("resnet20_cifar_a", False, num_classes, in_chans, generator)


def resnet18_tiny(num_classes: int = 200, in_chans: int = 3, generator: torch.Generator | None = None) -> SmallResNet:
    """ResNet-18 for the 64x64 images of Tiny-ImageNet, Kaiming-normal weights, drawn from `generator` if given."""
    model = SmallResNet((64, 128, 256, 512), 2, num_classes, in_chans)
    model.pretrained_cfg = images(
        "resnet18_tiny", 64, TINY_MEAN, TINY_STD, first_conv="conv", num_classes=num_classes, in_chans=in_chans
    )
    kaiming_normal_(model, generator)
    return model


def _cifar(name: str, learned: bool, num_classes: int, in_chans: int, generator: torch.Generator | None) -> SmallResNet:
    model = SmallResNet((16, 32, 64), 3, num_classes, in_chans, learned)
    model.pretrained_cfg = images(
        name, 32, CIFAR10_MEAN, CIFAR10_STD, first_conv="conv", num_classes=num_classes, in_chans=in_chans
    )
    kaiming_normal_(model, generator)
    return model
