"""The paper's data sets by name: location, columns, splits, and augmentation of the training images."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..core.registry import Registry
from .segmentation.overlay import colours

TaskName = Literal["classification", "segmentation"]

VOC_CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


@dataclass(frozen=True)
class NoAugmentation:
    """The whole image, resized."""


@dataclass(frozen=True)
class PadCrop:
    """`padding` black pixels around an image `size` wide, a random crop of the original size, a flip.

    If the model's input is larger than the image, both grow with it: an image of 32 is resized to 224 first, and padded
    by 4 · 224/32 = 28, so that the crop loses the same share of it.
    """

    size: int
    padding: int
    flip: float = 0.5


@dataclass(frozen=True)
class ResizedCrop:
    """A random crop with a share `scale` of the area and width:height in `ratio`, resized to the model's input.

    Then, in the paper's order: greyscale with probability `grey`, brightness, contrast, saturation and hue by up to
    `jitter`, a flip.
    """

    scale: tuple[float, float]
    ratio: tuple[float, float]
    grey: float = 0.0
    jitter: float = 0.0
    flip: float = 0.5


@dataclass(frozen=True)
class ScaleCrop:
    """For images with label maps: both scaled by a random factor in `scale`, where 1 is an image that just fits.

    Then a random crop of the model's input size, padded if the image is smaller, and a flip.
    """

    scale: tuple[float, float] = (0.5, 2.0)
    flip: float = 0.5


@dataclass(frozen=True)
class Preset:
    title: str
    dataset: str  # for a card: its id on the Hub, if it has one
    num_classes: int
    augmentation: NoAugmentation | PadCrop | ResizedCrop | ScaleCrop
    image_column: str = "image"
    label_column: str = "label"
    train_split: str = "train"
    test_split: str = "test"
    whole: bool = True  # test images are resized whole; otherwise the model's own resize and centre crop
    task: TaskName = "classification"
    classes: tuple[str, ...] = ()  # names of the classes, if the data set itself has none
    # colours of label maps that are stored as RGB images: of classes 0, 1, … and last of pixels without a class
    colours: tuple[tuple[int, int, int], ...] = ()
    grey: bool = False  # the images have one channel, and also fit a model with one channel
    name: str = ""  # its key in PRESETS

    @property
    def on_hub(self) -> bool:
        return "/" in self.dataset

    def local_copy(self) -> Path | None:
        """$HF_PX_DATA/<name>, if it exists."""
        home = os.environ.get("HF_PX_DATA")
        if not home or not self.on_hub:
            return None
        folder = Path(home).expanduser()
        if not folder.is_dir():
            raise ValueError(f"HF_PX_DATA={home}: no such folder; it should hold copies of data sets, as {self.name}/")
        return folder / self.name if (folder / self.name).exists() else None


_CIFAR = PadCrop(size=32, padding=4)
_COLOURS = [(red, green, blue) for red, green, blue in colours(256).tolist()]
PRESETS: Registry[Preset] = Registry("data set")
for _name, _preset in {
    # 1,797 grey images of 8x8. Not augmented: the demo should be fast, and a flipped 2 is not a digit
    "digits": Preset("Handwritten digits of scikit-learn", "scikit-learn-digits", 10, NoAugmentation(), grey=True),
    # 60,000 images of 32x32 each
    "cifar10": Preset("CIFAR-10", "uoft-cs/cifar10", 10, _CIFAR, "img"),
    "cifar100": Preset("CIFAR-100", "uoft-cs/cifar100", 100, _CIFAR, "img", "fine_label"),
    # 110,000 images of 64x64
    "tiny-imagenet": Preset(
        "Tiny-ImageNet",
        "zh-plus/tiny-imagenet",
        200,
        ResizedCrop(scale=(0.1, 1.0), ratio=(0.8, 1.25)),
        test_split="valid",
    ),
    # 1.3 million photographs; its terms have to be accepted on the Hub once. The labels of its test split are all -1
    "imagenet-1k": Preset(
        "ImageNet-1k",
        "ILSVRC/imagenet-1k",
        1000,
        ResizedCrop(scale=(0.2, 1.0), ratio=(3 / 4, 4 / 3), grey=0.2, jitter=0.4),
        test_split="validation",
        whole=False,
    ),
    # 2,913 photographs with label maps
    "voc2012": Preset(
        "Pascal VOC 2012",
        "nateraw/pascal-voc-2012",
        21,
        ScaleCrop(),
        label_column="mask",
        test_split="val",
        task="segmentation",
        classes=VOC_CLASSES,
        colours=(*_COLOURS[:21], _COLOURS[255]),
    ),
}.items():
    PRESETS.add(_name, replace(_preset, name=_name))


def preset_of(source: str) -> Preset | None:
    """The preset of a name or Hub id; None for all others, also for paths."""
    for name in PRESETS:
        if source in (name, PRESETS[name].dataset):
            return PRESETS[name]
    return None
