"""From a PIL image to what the model takes: size, mean, std, interpolation are the model's, the variation the data's.

Crop, resize and flip work on bytes, which become floats once, at the end: (x - mean) / std. All randomness is torch's.
Bytes are a PIL image or a tensor, whichever is faster: photographs are cropped and coloured by PIL (1.2 times as fast),
small images enlarged as tensors (3 to 4 times, 32 to 224).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from .open_data import Data
from .presets import AsItIs, PadCrop, ResizedCrop

Transform = Callable[[Image.Image], Tensor]


def train_transform(data: Data, images: Mapping[str, Any]) -> Transform:
    """RGB image -> float tensor, at random as the paper's appendix says; `images` is data_config(model)."""
    from torchvision.transforms import v2

    pixels, normalise = _ends(data, images)
    _, height, width = images["input_size"]
    vary = data.preset.augmentation if data.preset else usual(data, images)
    steps: list[Callable]
    if isinstance(vary, ResizedCrop):
        steps = [
            v2.RandomResizedCrop((height, width), vary.scale, vary.ratio, _interpolation(images), antialias=True),
            *([v2.RandomGrayscale(vary.grey)] if vary.grey else []),
            *([v2.ColorJitter(*[vary.jitter] * 4)] if vary.jitter else []),
            v2.RandomHorizontalFlip(vary.flip),
            pixels,
        ]
    elif isinstance(vary, PadCrop):
        # resized before the crop, so that the whole picture is there to move
        steps = [pixels, resize(images), PadCropFlip(*padding_of(vary, images), vary.flip)]
    else:
        steps = [pixels, resize(images)]
    return v2.Compose([*steps, normalise])


def test_transform(data: Data, images: Mapping[str, Any]) -> Transform:
    """RGB image -> float tensor, always the same: the whole image if it is small, else the model's own crop."""
    from timm.data import create_transform
    from torchvision.transforms import v2

    pixels, normalise = _ends(data, images)
    if takes_whole(data, images):
        return v2.Compose([pixels, resize(images), normalise])
    keys = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")
    return create_transform(**{key: images[key] for key in keys if key in images}, is_training=False)


def picture_transform(images: Mapping[str, Any]) -> Transform:
    """test_transform for a picture of no data set: `images` is all that a ticket says of those it was tested with.

    Where a run took them whole, it wrote down crop_mode "squash" at crop_pct 1.
    """
    from timm.data import create_transform
    from torchvision.transforms import v2

    if images.get("crop_mode") == "squash" and images.get("crop_pct") == 1.0:
        channels = images["input_size"][0]
        pixels = ToPixels("L" if channels == 1 else "RGB")
        return v2.Compose([pixels, resize(images), Normalise(channels, images["mean"], images["std"])])
    keys = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")
    return create_transform(**{key: images[key] for key in keys if key in images}, is_training=False)


def takes_whole(data: Data, images: Mapping[str, Any]) -> bool:
    """Whether test images are resized whole, or cut by the model's own crop."""
    return data.preset.whole if data.preset else _is_small(data, images)


def padding_of(vary: PadCrop, images: Mapping[str, Any]) -> tuple[int, int]:
    """Across and down, at each side; it grows with the picture: 4 in 32 is 28 in 224."""
    _, height, width = images["input_size"]
    return round(vary.padding * width / vary.size), round(vary.padding * height / vary.size)


def usual(data: Data, images: Mapping[str, Any]) -> AsItIs | PadCrop | ResizedCrop:
    """Data that the paper does not have: as CIFAR if the images are small, else as ImageNet's are usually cut."""
    if _is_small(data, images):
        return PadCrop(size=8, padding=1)  # an eighth at each side
    return ResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))


def _is_small(data: Data, images: Mapping[str, Any]) -> bool:
    """The first image is no larger than the model's input: to crop it would be to enlarge a part of it.

    One image speaks for all, so that nothing else is decoded; and the choice does not depend on which is drawn.
    """
    _, height, width = images["input_size"]
    return data.train.size[0] <= width and data.train.size[1] <= height


def _ends(data: Data, images: Mapping[str, Any]) -> tuple[Callable, Callable]:
    """To a tensor of bytes, and from there to what the model takes."""
    channels = check_channels(data, images)
    return ToPixels("L" if channels == 1 else "RGB"), Normalise(channels, images["mean"], images["std"])


def check_channels(data: Data, images: Mapping[str, Any]) -> int:
    """How many the model takes: 3, or 1 where the pictures are grey."""
    channels = images["input_size"][0]
    if channels != 3 and not (channels == 1 and data.preset and data.preset.grey):
        raise ValueError(
            f"the model takes {channels} channels, {data.name} has RGB images; take a model of 3 channels, or "
            "to try it out, data 'random', which fits any model"
        )
    return channels


def resize(images: Mapping[str, Any]) -> Callable:
    from torchvision.transforms import v2

    _, height, width = images["input_size"]
    return v2.Resize((height, width), _interpolation(images), antialias=True)


def _interpolation(images: Mapping[str, Any]) -> Any:
    from torchvision.transforms import InterpolationMode

    name = images.get("interpolation", "bilinear")
    # those that tensors have; timm's others (lanczos, box, hamming, random) are nearest to this one
    return InterpolationMode(name if name in ("bilinear", "bicubic", "nearest", "nearest-exact") else "bicubic")


class ToPixels:
    """PIL image -> uint8 tensor."""

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def __call__(self, image: Image.Image) -> Tensor:
        from torchvision.transforms.v2.functional import pil_to_tensor

        return pil_to_tensor(image if image.mode == self.mode else image.convert(self.mode))


class PadCropFlip:
    """Black padding, a crop of the old size anywhere in it, a flip: torchvision's RandomCrop and RandomHorizontalFlip.

    In one, because on 32x32 pixels those two take 69 µs, mostly to look at their arguments, and this takes 15.
    """

    def __init__(self, across: int, down: int, flip: float) -> None:
        self.across, self.down, self.flip = across, down, flip

    def __call__(self, pixels: Tensor) -> Tensor:
        _, height, width = pixels.shape
        across, down = self.across, self.down
        right, low, mirror = torch.rand(3).tolist()
        left, top = int(right * (2 * across + 1)), int(low * (2 * down + 1))  # rand() < 1: at most twice the padding
        padded = F.pad(pixels, (across, across, down, down))
        crop = padded[:, top : top + height, left : left + width]
        return crop.flip(2) if mirror < self.flip else crop


class Normalise:
    """(x / 255 - mean) / std, in one go over the uint8 tensor."""

    def __init__(self, channels: int, mean: Any, std: Any) -> None:
        self.mean, self.std = (255 * self._each(values, channels) for values in (mean, std))

    def __call__(self, pixels: Tensor) -> Tensor:
        return pixels.float().sub_(self.mean).div_(self.std)

    @staticmethod
    def _each(values: Any, channels: int) -> Tensor:
        given = torch.tensor([float(value) for value in values])
        # timm gives a model of one channel the three means of its RGB weights
        return (given if len(given) == channels else given.mean().expand(channels)).view(-1, 1, 1)
