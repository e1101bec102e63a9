"""The first ResNet-50: y = fc(mean(layer4(…layer1(pool(relu(bn(conv1(x)))))))), strides in the first 1x1 convolution.

He et al., Deep Residual Learning for Image Recognition, CVPR 2016. The ResNet-50 of torchvision and timm has its
strides in the 3x3 convolution of a block instead; weights of the first one have the same names and shapes, but give
wrong outputs there. BatchNorm has eps 1e-3, and images are 0 to 255 minus their mean, as in Caffe.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from .builder import NetworkBuilder


def _make(num_classes: int, in_chans: int) -> nn.Module:
    from timm.models.resnet import Bottleneck, ResNet

    block: Any = Bottleneck  # timm's annotation asks for an instance of it
    model: Any = ResNet(block, (3, 4, 6, 3), num_classes=num_classes, in_chans=in_chans, zero_init_last=False)
    for layer in (model.layer2, model.layer3, model.layer4):
        layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-3
    return model


resnet50_original = NetworkBuilder(
    "resnet50_original",
    "ResNet-50 as first published",
    _make,
    side=224,
    mean=(123.68 / 255, 116.779 / 255, 103.939 / 255),
    std=(1 / 255, 1 / 255, 1 / 255),  # keeps the range 0 to 255
    first_conv="conv1",
    num_classes=1000,
    crop_pct=0.875,
    uses_timm=True,
)
