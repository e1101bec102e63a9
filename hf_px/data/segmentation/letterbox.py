"""Letterbox: an image of any size fitted into a segmenter's input, and its predictions back to the image's size.

Images are shrunk if they are larger, never enlarged, then padded on the right and at the bottom: VOC's images, at most
500 pixels wide, fit into 513 x 513 unchanged. The padding is the mean colour, 0 after normalisation, and has no label.
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
from ..transforms import NormalisePixels, ToPixels


class Letterbox:
    """x, y = letterbox(image, labels): float 3 x H x W and int64 H x W, for `images` = data_config(model)."""

    def __init__(self, images: Mapping[str, Any]) -> None:
        _, self.height, self.width = images["input_size"]
        self.pixels, self.normalise = ToPixels(images), NormalisePixels(images)

    def scale(self, image: Image.Image) -> float:
        return min(1.0, self.width / image.width, self.height / image.height)

    def size(self, image: Image.Image) -> tuple[int, int]:
        """(width, height) of the image inside the input."""
        scale = self.scale(image)
        return max(1, round(image.width * scale)), max(1, round(image.height * scale))

    def __call__(self, image: Image.Image, labels: np.ndarray | None = None) -> tuple[Tensor, Tensor]:
        """Without a label map, all labels are IGNORE."""
        size = self.size(image)
        labels = np.full((image.height, image.width), IGNORE, np.uint8) if labels is None else labels
        return self.padded(resize_image(image, size, Image.Resampling.BILINEAR), resize_label_map(labels, size))

    def padded(self, image: Image.Image, labels: np.ndarray) -> tuple[Tensor, Tensor]:
        """Normalise, then pad to the input size; the image must not be larger."""
        x, y = self.normalise(self.pixels(image)), torch.from_numpy(labels).long()
        border = (0, self.width - image.width, 0, self.height - image.height)
        return F.pad(x, border), F.pad(y, border, value=IGNORE)

    def label_map(self, logits: Tensor, image: Image.Image) -> np.ndarray:
        """The most likely class of every pixel of the image, H x W uint8, from logits C x H x W of the input."""
        width, height = self.size(image)
        best = logits[:, :height, :width].argmax(0).to(torch.uint8).cpu().numpy()
        return resize_label_map(best, image.size)


def resize_image(image: Image.Image, size: tuple[int, int], method: Image.Resampling) -> Image.Image:
    return image if image.size == size else image.resize(size, method)


def resize_label_map(labels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Nearest neighbour: interpolation between classes 3 and 5 would give class 4."""
    return np.array(resize_image(Image.fromarray(labels), size, Image.Resampling.NEAREST))
