"""From a PIL image to the model's input: size, mean, std and interpolation of the model, augmentation of the data set.

Crop, resize and flip work on bytes, which become floats once, at the end: (x - mean) / std. All random numbers are
torch's. Bytes are a PIL image or a tensor, whichever is faster: photographs are cropped and coloured by PIL (1.2 times
as fast), small images enlarged as tensors (3 to 4 times, 32 to 224). Small images that are kept in memory are augmented
in batches: one at a time, a CIFAR image takes 90 µs, a tenth of its share of a ResNet-20 step in bfloat16 on two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from .labelled_split import Split
from .open_data import Data
from .presets import NoAugmentation, PadCrop, ResizedCrop, ScaleCrop

Transform = Callable[[Image.Image], Tensor]


def train_transform(data: Data, images: Mapping[str, Any]) -> Transform:
    """RGB image -> float tensor, augmented as in the paper's appendix; `images` is data_config(model)."""
    from torchvision.transforms import v2

    check_channels(data, images)
    pixels = ToPixels(images)
    _, height, width = images["input_size"]
    vary = augmentation_of(data, images)
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
        # resized before the crop, so that the crop moves over the whole image
        steps = [pixels, resize(images), PadCropFlip(*padding_of(vary, images), vary.flip)]
    else:
        steps = [pixels, resize(images)]
    return v2.Compose([*steps, NormalisePixels(images)])


def test_transform(data: Data, images: Mapping[str, Any]) -> Transform:
    """RGB image -> float tensor, without randomness: the whole image if it is small, else the model's own crop."""
    check_channels(data, images)
    return _evaluation_transform(images, whole=takes_whole(data, images))


def image_transform(images: Mapping[str, Any]) -> Transform:
    """test_transform for an image of no data set, with the settings of a ticket.

    A run that resized test images whole stored crop_mode "squash" and crop_pct 1.
    """
    return _evaluation_transform(images, whole=images.get("crop_mode") == "squash" and images.get("crop_pct") == 1.0)


def _evaluation_transform(images: Mapping[str, Any], whole: bool) -> Transform:
    from timm.data import create_transform
    from torchvision.transforms import v2

    if whole:
        return v2.Compose([ToPixels(images), resize(images), NormalisePixels(images)])
    keys = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")
    return create_transform(**{key: images[key] for key in keys if key in images}, is_training=False)


def batch_augment(data: Data[Split], images: Mapping[str, Any]) -> BatchAugment | None:
    """For images that are kept in memory, have the model's input size and are padded and cropped, or not augmented."""
    channels, height, width = images["input_size"]
    if not data.train.keeps or data.train.size != (width, height) or channels != 3:
        return None
    augmentation = augmentation_of(data, images)
    if isinstance(augmentation, PadCrop):
        return BatchAugment(images, *padding_of(augmentation, images), augmentation.flip)
    return BatchAugment(images, 0, 0, 0.0) if isinstance(augmentation, NoAugmentation) else None


def takes_whole(data: Data, images: Mapping[str, Any]) -> bool:
    """True if test images are resized whole, False if they go through the model's own crop."""
    return data.preset.whole if data.preset else _is_small(data, images)


def padding_of(vary: PadCrop, images: Mapping[str, Any]) -> tuple[int, int]:
    """(horizontal, vertical) padding on each side, scaled to the input: 4 of 32 is 28 of 224."""
    _, height, width = images["input_size"]
    return round(vary.padding * width / vary.size), round(vary.padding * height / vary.size)


def augmentation_of(data: Data, images: Mapping[str, Any]) -> NoAugmentation | PadCrop | ResizedCrop | ScaleCrop:
    """The augmentation of the preset; for other data that of CIFAR if the images are small, else ImageNet's crop."""
    if data.preset:
        return data.preset.augmentation
    if _is_small(data, images):
        return PadCrop(size=8, padding=1)  # 1/8 on each side
    return ResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))


def _is_small(data: Data, images: Mapping[str, Any]) -> bool:
    """True if the first image is not larger than the model's input, so that a crop would enlarge a part of it.

    Only the first image decides, so that no other is decoded and the choice depends on no random draw.
    """
    _, height, width = images["input_size"]
    return data.train.size[0] <= width and data.train.size[1] <= height


def check_channels(data: Data, images: Mapping[str, Any]) -> None:
    """Refuse a model that does not take 3 channels, or 1 if the images are grey."""
    channels = images["input_size"][0]
    if channels != 3 and not (channels == 1 and data.preset and data.preset.grey):
        raise ValueError(
            f"the model takes {channels} channels, {data.name} has RGB images; use a model with 3 channels, or, to try "
            "a command out, data 'random', which fits any model"
        )


def resize(images: Mapping[str, Any]) -> Callable:
    from torchvision.transforms import v2

    _, height, width = images["input_size"]
    return v2.Resize((height, width), _interpolation(images), antialias=True)


def _interpolation(images: Mapping[str, Any]) -> Any:
    from torchvision.transforms import InterpolationMode

    name = images.get("interpolation", "bilinear")
    # bicubic stands in for the modes that torchvision lacks for tensors: lanczos, box, hamming, random
    return InterpolationMode(name if name in ("bilinear", "bicubic", "nearest", "nearest-exact") else "bicubic")


class ToPixels:
    """PIL image -> uint8 tensor, grey if the model has one input channel."""

    def __init__(self, images: Mapping[str, Any]) -> None:
        self.mode = "L" if images["input_size"][0] == 1 else "RGB"

    def __call__(self, image: Image.Image) -> Tensor:
        from torchvision.transforms.v2.functional import pil_to_tensor

        return pil_to_tensor(image if image.mode == self.mode else image.convert(self.mode))


class PadCropFlip:
    """Black padding, a random crop of the original size, a flip: torchvision's RandomCrop and RandomHorizontalFlip.

    In one step: on 32x32 pixels those two take 69 µs, mostly for checking arguments, and this takes 15.
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


class NormalisePixels:
    """(x / 255 - mean) / std of a uint8 tensor."""

    def __init__(self, images: Mapping[str, Any]) -> None:
        channels = images["input_size"][0]
        self.mean, self.std = (255 * self._each(images[key], channels) for key in ("mean", "std"))

    def __call__(self, pixels: Tensor) -> Tensor:
        return pixels.float().sub_(self.mean).div_(self.std)

    @staticmethod
    def _each(values: Any, channels: int) -> Tensor:
        given = torch.tensor([float(value) for value in values])
        # timm gives a model with one channel the three means of its RGB weights
        return (given if len(given) == channels else given.mean().expand(channels)).view(-1, 1, 1)


class BatchAugment:
    """x = augment(pixels, draws): N x H x W x 3 bytes and N x 3 numbers in [0, 1) to N x 3 x H x W floats.

    The same as PadCropFlip and NormalisePixels for a batch, without a loop over images. Pixels and outputs are
    channels-last in memory, which convolutions on CPUs and GPUs prefer.
    """

    def __init__(self, images: Mapping[str, Any], across: int, down: int, flip: float) -> None:
        self.across, self.down, self.flip = across, down, flip
        self._normalise = NormalisePixels(images)
        self._pixels, self._resize = ToPixels(images), resize(images)

    def __call__(self, pixels: np.ndarray, draws: np.ndarray) -> Tensor:
        count, height, width, _ = pixels.shape
        left, top = (
            (draws[:, :2] * [2 * self.across + 1, 2 * self.down + 1]).astype(int).T
        )  # u < 1: at most twice the padding
        rows = top[:, None] + np.arange(height)
        columns = left[:, None] + np.arange(width)
        mirror = draws[:, 2] < self.flip
        columns[mirror] = columns[mirror, ::-1]
        padded = np.pad(pixels, ((0, 0), (self.down, self.down), (self.across, self.across), (0, 0)))
        crops = padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
        return self._normalise(torch.from_numpy(crops).permute(0, 3, 1, 2))

    def resized_pixels(self, image: Image.Image) -> np.ndarray:
        """H x W x 3 pixels of an image of another size."""
        return self._resize(self._pixels(image)).permute(1, 2, 0).numpy()
