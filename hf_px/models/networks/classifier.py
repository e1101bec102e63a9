"""Classifier: features, mean over the image, one linear head `fc`, with timm's names for its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Classifier(nn.Module):
    """y = fc(mean over the image of forward_features(x)); no classes at all leaves the features."""

    pretrained_cfg: dict[str, Any]  # in timm's words: the images that it expects, and how it is built again
    num_features: int
    num_classes: int
    fc: nn.Module

    def end_with_head_(self, num_features: int, num_classes: int) -> None:
        """To be called last: in this order the weights are drawn, listed and stored."""
        self.num_features = self.head_hidden_size = num_features
        self.num_classes = num_classes
        self.fc = _head(num_features, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = x.mean(dim=(2, 3))
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def get_classifier(self) -> nn.Module:
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head, drawn from torch's own generator as timm does."""
        if global_pool not in (None, "avg"):
            raise ValueError(f"global_pool {global_pool!r}: this network averages; leave it out")
        old = next(self.parameters())
        self.num_classes = num_classes
        self.fc = kaiming_normal_(_head(self.num_features, num_classes)).to(old.device, old.dtype)


def _head(num_features: int, num_classes: int) -> nn.Module:
    return nn.Linear(num_features, num_classes) if num_classes else nn.Identity()


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


def images(
    architecture: str,
    side: int,
    mean: Sequence[float],
    std: Sequence[float],
    *,
    first_conv: str,
    num_classes: int,
    in_chans: int,
    classifier: str = "fc",
) -> dict[str, Any]:
    """pretrained_cfg: no crop, the images are side x side already, or taken whole."""
    grey = in_chans != 3
    return {
        "architecture": architecture,  # by which a ticket is built again
        "input_size": (in_chans, side, side),
        "num_classes": num_classes,
        "mean": (0.5,) * in_chans if grey else tuple(mean),
        "std": (0.25,) * in_chans if grey else tuple(std),
        "interpolation": "bilinear",
        "crop_pct": 1.0,
        "first_conv": first_conv,
        "classifier": classifier,
    }
