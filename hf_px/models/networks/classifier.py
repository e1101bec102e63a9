"""Classifier: features, mean over the image, one linear head `fc`, with the methods that timm's models have."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .builder import kaiming_normal_


class Classifier(nn.Module):
    """y = fc(mean over the image of forward_features(x)); with 0 classes y is the mean features."""

    pretrained_cfg: dict[str, Any]  # set by NetworkBuilder
    num_features: int
    num_classes: int
    fc: nn.Module

    def end_with_head_(self, num_features: int, num_classes: int) -> None:
        """Call this last: weights are drawn, listed and stored in the order of construction."""
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
        """Replace the head; its weights come from torch's global generator, as in timm."""
        if global_pool not in (None, "avg"):
            raise ValueError(f"global_pool {global_pool!r}: this network always averages; omit it")
        old = next(self.parameters())
        self.num_classes = num_classes
        self.fc = kaiming_normal_(_head(self.num_features, num_classes)).to(old.device, old.dtype)


def _head(num_features: int, num_classes: int) -> nn.Module:
    return nn.Linear(num_features, num_classes) if num_classes else nn.Identity()
