"""NetworkBuilder: builds one architecture with Kaiming-normal weights and timm's pretrained_cfg."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


def kaiming_normal_(model: nn.Module, generator: torch.Generator | None = None) -> nn.Module:
    """W ~ N(0, 2 / fan_in) for convolutions and linear layers, γ = 1, β = 0, biases 0: the paper's initialisation."""
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()  # also resets the running statistics
    return model


@dataclass(eq=False)
class NetworkBuilder:
    """model = builder(num_classes, in_chans, generator)."""

    name: str  # in timm's registry
    summary: str
    make: Callable[[int, int], nn.Module]  # (num_classes, in_chans) -> a module with any weights
    side: int  # side of the images
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    first_conv: str
    num_classes: int  # the default
    classifier: str = "fc"
    crop_pct: float = 1.0
    uses_timm: bool = False  # `make` imports it, which takes seconds

    def __post_init__(self) -> None:
        self.__doc__ = f"{self.summary}, Kaiming-normal weights, drawn from `generator` if given."

    def __call__(
        self, num_classes: int | None = None, in_chans: int = 3, generator: torch.Generator | None = None
    ) -> Any:
        num_classes = self.num_classes if num_classes is None else num_classes
        model = self.make(num_classes, in_chans)
        model.pretrained_cfg = self.pretrained_cfg(num_classes, in_chans)  # type: ignore[assignment]
        return kaiming_normal_(model, generator)

    def pretrained_cfg(self, num_classes: int | None = None, in_chans: int = 3) -> dict[str, Any]:
        """timm's description of the model; does not build it, because timm's registry needs it during its import."""
        rgb = in_chans == 3
        return {
            "architecture": self.name,  # a ticket's model is built by this name
            "input_size": (in_chans, self.side, self.side),
            "num_classes": self.num_classes if num_classes is None else num_classes,
            "mean": self.mean if rgb else (0.5,) * in_chans,
            "std": self.std if rgb else (0.25,) * in_chans,
            "interpolation": "bilinear",
            "crop_pct": self.crop_pct,
            "first_conv": self.first_conv,
            "classifier": self.classifier,
        }
