"""CIFAR ResNet-20: 3x3 stem, three stages of three basic blocks at 16, 32 and 64 channels, pool, one linear head.

He et al., Deep Residual Learning for Image Recognition, CVPR 2016, section 4.2; with the 1x1 convolution
shortcuts of the pruning-at-initialisation literature where width and stride change, and Kaiming-normal
weights, W ~ N(0, 2 / fan_in), as in the paper. 270,896 prunable weights at ten classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)


class BasicBlock(nn.Module):
    """y = relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x))."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNetCifar(nn.Module):
    """`depth` basic blocks in each of three stages: 3 gives ResNet-20."""

    def __init__(self, depth: int, num_classes: int, in_chans: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_chans, 16, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        widths = [16] * depth + [32] * depth + [64] * depth
        self.blocks = nn.Sequential(
            *(BasicBlock(i, o, stride=1 if i == o else 2) for i, o in zip([16, *widths], widths))
        )
        self.fc = nn.Linear(64, num_classes)
        self.num_classes = num_classes
        # in timm's words, so that code for timm models finds the input size; no crop: CIFAR images are 32x32 already
        grey = in_chans != 3
        self.pretrained_cfg = {
            "input_size": (in_chans, 32, 32),
            "num_classes": num_classes,
            "mean": (0.5,) * in_chans if grey else CIFAR10_MEAN,
            "std": (0.25,) * in_chans if grey else CIFAR10_STD,
            "interpolation": "bilinear",
            "crop_pct": 1.0,
        }

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn(self.conv(x))))
        return self.fc(x.mean(dim=(2, 3)))


def kaiming_normal_(model: nn.Module, generator: torch.Generator | None = None) -> nn.Module:
    """W ~ N(0, 2 / fan_in) for convolutions and linear layers, γ = 1, β = 0, biases 0: the paper's initialisation."""
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()  # 1 and 0, and the running statistics too
    return model


def resnet20(num_classes: int = 10, in_chans: int = 3, generator: torch.Generator | None = None) -> ResNetCifar:
    """ResNet-20 for 32x32 images with Kaiming-normal weights, drawn from `generator` if given."""
    model = ResNetCifar(depth=3, num_classes=num_classes, in_chans=in_chans)
    model.pretrained_cfg["architecture"] = "resnet20"  # by which a ticket is built again
    kaiming_normal_(model, generator)
    return model
