"""scikit-learn's handwritten digits: 8x8 grey images that come with scikit-learn, always split the same way."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .sampling import LabelledImages, balanced


def digits(size: int | tuple[int, int] = 32) -> tuple[LabelledImages, LabelledImages]:
    """(train, test) of scikit-learn's 8x8 digits, enlarged to size x size RGB: 1,437 and 360 images, 36 per class.

    Normalised to mean 0 and standard deviation 1 over the training pixels.
    """
    train, test = grey_digits()
    mean, std = train.images.mean(), train.images.std()
    size = (size, size) if isinstance(size, int) else size

    def enlarge(part: LabelledImages) -> LabelledImages:
        grey = F.interpolate((part.images - mean) / std, size, mode="bilinear", align_corners=False)
        return LabelledImages(grey.repeat(1, 3, 1, 1), part.labels)

    return enlarge(train), enlarge(test)


def grey_digits() -> tuple[LabelledImages, LabelledImages]:
    """(train, test) unchanged: N x 1 x 8 x 8 from 0 to 1, in steps of 1/16."""
    from sklearn.datasets import load_digits

    data = load_digits()
    grey = torch.as_tensor(data.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.as_tensor(data.target, dtype=torch.int64)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    held_out[balanced(labels, per_class=36, seed=0)] = True
    return LabelledImages(grey[~held_out], labels[~held_out]), LabelledImages(grey[held_out], labels[held_out])


def pixels(part: LabelledImages) -> Tensor:
    """N x 8 x 8 uint8, white on black."""
    return (part.images.squeeze(1) * 255).round().byte()
