"""The first ResNet-50: y = fc(mean(layer4(…layer1(pool(relu(bn(conv1(x)))))))), halving in the first 1x1 convolution.

He et al., Deep Residual Learning for Image Recognition, CVPR 2016. torchvision's and timm's halve the image in the 3x3
convolution of a block instead, so that weights of the first one, which have the same names and shapes, see other
pictures there. Its norms have eps 1e-3 and its images are 0 to 255 less their mean, as Caffe's were.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .classifier import images, kaiming_normal_

NAME = "resnet50_original"
MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)


class Build:
    """ResNet-50 as it was first published, Kaiming-normal weights, drawn from `generator` if given."""

    def __call__(self, num_classes: int = 1000, in_chans: int = 3, generator: torch.Generator | None = None) -> Any:
        from timm.models.resnet import Bottleneck, ResNet

        block: Any = Bottleneck  # timm's annotation asks for an instance of it
        model: Any = ResNet(block, (3, 4, 6, 3), num_classes=num_classes, in_chans=in_chans, zero_init_last=False)
        for layer in (model.layer2, model.layer3, model.layer4):
            layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = 1e-3
        model.pretrained_cfg = self.told(num_classes, in_chans)
        kaiming_normal_(model, generator)
        return model

    def told(self, num_classes: int = 1000, in_chans: int = 3) -> dict[str, Any]:
        """pretrained_cfg, without building anything: timm's registry asks for it when it is imported."""
        scale = (1 / 255,) * 3  # a deviation that leaves 0 to 255 as it is
        told = images(NAME, 224, MEAN, scale, first_conv="conv1", num_classes=num_classes, in_chans=in_chans)
        return {**told, "crop_pct": 0.875}


resnet50_original = Build()
