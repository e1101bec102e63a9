"""Images that an export is compared on: the user's, or two photographs that come with scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ..core.options import renamed_arguments
from ..data.segmentation.letterbox import Letterbox
from ..data.transforms import image_transform
from ..data.unlabelled import some_images

COUNT = 6


def photographs() -> list[Image.Image]:
    """A temple and a flower, 640x427: each whole, its left half and its right half."""
    from sklearn.datasets import load_sample_images

    whole = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    left, right = (0, 0, 320, 427), (320, 0, 640, 427)
    return [*whole, *(image.crop(half) for image in whole for half in (left, right))]


def real_images(source: str | None) -> list[Image.Image]:
    """Images of a source, named as for hf-px prune, or the photographs."""
    if source is None:
        return photographs()
    with renamed_arguments(source="data"):
        return some_images(source, COUNT)


def prepared(images: Sequence[Image.Image], settings: Mapping[str, Any], *, letterbox: bool) -> Tensor:
    """N x C x H x W as a ticket with these image settings takes them."""
    grey = settings["input_size"][0] == 1
    if letterbox:
        fit = Letterbox(settings)
        return torch.stack([fit(image)[0] for image in images])
    transform = image_transform(settings)
    return torch.stack([transform(image.convert("L" if grey else "RGB")) for image in images])
