"""DeepLabV3+: y = up(classifier(decoder([low(c2), up(aspp(c5))]))), c2 and c5 the encoder's features at 1/4 and 1/16.

Chen et al., Encoder-Decoder with Atrous Separable Convolution for Semantic Image Segmentation, ECCV 2018. As in
the paper after Chen et al., CVPR 2021: ordinary convolutions instead of separable ones, output stride 16, rates 6, 12
and 18, low-level features of 48 channels, one 3x3 convolution in the decoder. The encoder is timm's, with the same
names, so that any trained backbone fits: `backbone.layer1.0.conv1.weight` is `layer1.0.conv1.weight` of the classifier.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .builder import NetworkBuilder, kaiming_normal_

# timm models with features at 1/4 of the image size and a last stage whose stride can be removed
ENCODERS = ("resnet18", "resnet34", "resnet50", "resnet101", "test_resnet")
RATES = (6, 12, 18)
PREFIX = "deeplabv3plus_"
SIDE, WIDTH, LOW = 513, 256, 48
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def conv_norm_relu(inputs: int, outputs: int, kernel: int = 1, rate: int = 1) -> nn.Sequential:
    """relu(bn(conv(x))) without change of the image size."""
    padding = rate * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, padding=padding, dilation=rate, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class Pooled(nn.Module):
    """The mean over the image, repeated at every pixel."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.project = conv_norm_relu(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(x.mean((2, 3), keepdim=True)).expand(-1, -1, *x.shape[2:])


class Aspp(nn.Module):
    """Atrous spatial pyramid: 1x1, 3x3 at three dilation rates and the mean over the image, concatenated."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        around = [conv_norm_relu(inputs, outputs, 3, rate) for rate in RATES]
        self.branches = nn.ModuleList([conv_norm_relu(inputs, outputs), *around, Pooled(inputs, outputs)])
        self.project = conv_norm_relu(len(self.branches) * outputs, outputs)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.project(torch.cat([branch(x) for branch in self.branches], 1)))


class DeepLabV3Plus(nn.Module):
    """Images N x 3 x H x W → logits N x classes x H x W; `classifier` is the head."""

    task = "segmentation"
    pretrained_cfg: dict[str, Any]  # set by NetworkBuilder

    def __init__(self, encoder: str, num_classes: int, in_chans: int) -> None:
        from timm.models import create_model

        super().__init__()
        features: Any = create_model(
            encoder, features_only=True, out_indices=(1, 4), output_stride=16, in_chans=in_chans, pretrained=False
        )
        low, high = features.feature_info.channels()
        self.backbone = features
        self.aspp = Aspp(high, WIDTH)
        self.low = conv_norm_relu(low, LOW)
        self.decoder = conv_norm_relu(LOW + WIDTH, WIDTH, 3)
        self.num_features = self.head_hidden_size = WIDTH
        self.num_classes = num_classes
        self.classifier = _head(num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        """Features at 1/4 of the image size."""
        low, high = self.backbone(x)
        return self.decoder(torch.cat([self.low(low), _resize(self.aspp(high), low)], 1))

    def forward(self, x: Tensor) -> Tensor:
        return _resize(self.classifier(self.forward_features(x)), x)

    def get_classifier(self) -> nn.Module:
        return self.classifier

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head; its weights come from torch's global generator, as in timm."""
        old = next(self.parameters())
        self.num_classes = num_classes
        self.classifier = kaiming_normal_(_head(num_classes)).to(old.device, old.dtype)


def _head(num_classes: int) -> nn.Module:
    return nn.Conv2d(WIDTH, num_classes, 1) if num_classes else nn.Identity()


def _resize(x: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(x, like.shape[2:], mode="bilinear", align_corners=False)


def _builder(encoder: str) -> NetworkBuilder:
    return NetworkBuilder(
        f"{PREFIX}{encoder}",
        f"DeepLabV3+ on timm's {encoder}",
        lambda classes, channels: DeepLabV3Plus(encoder, classes, channels),
        side=SIDE,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        first_conv="backbone.conv1",
        num_classes=21,
        classifier="classifier",
        uses_timm=True,
    )


DEEPLABS = {f"{PREFIX}{encoder}": _builder(encoder) for encoder in ENCODERS}
