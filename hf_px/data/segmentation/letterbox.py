"""Fit: a picture of any size into the square that a segmenter takes, whole, and the answer back to the picture's size.

Shrunk where it is larger, never enlarged, then padded at the right and below: VOC's pictures, at most 500 pixels wide,
go into 513 x 513 as they are. Padding is the mean colour, 0 once normalised, and has no label.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from ...core.forward import IGNORE
from ..transforms import Normalise, ToPixels


class Fit:
    """x, y = fit(image, mask): float 3 x H x W and int64 H x W, for `images` = data_config(model)."""

    def __init__(self, images: Mapping[str, Any]) -> None:
        channels, self.height, self.width = images["input_size"]
        self.pixels = ToPixels("L" if channels == 1 else "RGB")
        self.normalise = Normalise(channels, images["mean"], images["std"])

    def scale(self, image: Image.Image) -> float:
        return min(1.0, self.width / image.width, self.height / image.height)

    def size(self, image: Image.Image) -> tuple[int, int]:
        """(width, height) of the picture within the square."""
        scale = self.scale(image)
        return max(1, round(image.width * scale)), max(1, round(image.height * scale))

    def __call__(self, image: Image.Image, mask: np.ndarray | None = None) -> tuple[Tensor, Tensor]:
        """Without a mask all labels are IGNORE."""
        size = self.size(image)
        mask = np.full((image.height, image.width), IGNORE, np.uint8) if mask is None else mask
        return self.padded(resized(image, size, Image.Resampling.BILINEAR), resized_mask(mask, size))

    def padded(self, image: Image.Image, mask: np.ndarray) -> tuple[Tensor, Tensor]:
        """Normalised, then padded to the square; for what is not larger."""
        x, y = self.normalise(self.pixels(image)), torch.from_numpy(mask).long()
        border = (0, self.width - image.width, 0, self.height - image.height)
        return F.pad(x, border), F.pad(y, border, value=IGNORE)

    def labels(self, logits: Tensor, image: Image.Image) -> np.ndarray:
        """The likeliest class of every pixel of the picture, H x W uint8, from logits C x H x W of the square."""
        width, height = self.size(image)
        best = logits[:, :height, :width].argmax(0).to(torch.uint8).cpu().numpy()
        return resized_mask(best, image.size)


def resized(image: Image.Image, size: tuple[int, int], how: Image.Resampling) -> Image.Image:
    return image if image.size == size else image.resize(size, how)


def resized_mask(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Nearest neighbour: between class 3 and class 5 there is no class 4."""
    return np.array(resized(Image.fromarray(mask), size, Image.Resampling.NEAREST))
