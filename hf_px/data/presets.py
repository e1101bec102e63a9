"""The paper's data sets by name: where each lies, its columns and splits, and how its training images are varied."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..core.registry import Registry

TaskName = Literal["classification", "segmentation"]

VOC_CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


def voc_colour(label: int) -> tuple[int, int, int]:
    """Bit 3k + c of the label is bit 7 - k of colour c: 1 is (128, 0, 0), 8 is (64, 0, 0), 255 (224, 224, 192)."""
    red, green, blue = (sum((label >> (3 * k + c) & 1) << (7 - k) for k in range(3)) for c in range(3))
    return red, green, blue


@dataclass(frozen=True)
class AsItIs:
    """No variation: the whole image, resized."""


@dataclass(frozen=True)
class PadCrop:
    """`padding` black pixels around an image `size` wide, a random crop of the old size, a flip.

    Both are of the original image. A model that takes 224 where the data has 32 gets the image resized to 224 first,
    then padding 4 · 224/32 = 28: the same share of the picture is lost.
    """

    size: int
    padding: int
    flip: float = 0.5


@dataclass(frozen=True)
class ResizedCrop:
    """A random part of the image, a share `scale` of its area, width:height in `ratio`, resized to the model's input.

    Then greyscale with probability `grey`, brightness, contrast, saturation and hue by up to `jitter`, a flip: in this
    order, the paper's.
    """

    scale: tuple[float, float]
    ratio: tuple[float, float]
    grey: float = 0.0
    jitter: float = 0.0
    flip: float = 0.5


@dataclass(frozen=True)
class ScaleCrop:
    """For pictures with masks: both enlarged by a random factor in `scale`, 1 being a picture that just fits in whole.

    Then a random crop of the model's input, padded where the picture is smaller, and a flip.
    """

    scale: tuple[float, float] = (0.5, 2.0)
    flip: float = 0.5


@dataclass(frozen=True)
class Preset:
    name: str
    title: str
    dataset: str  # for a card: its id on the Hub, if it is there
    summary: str
    num_classes: int
    augmentation: AsItIs | PadCrop | ResizedCrop | ScaleCrop
    image_column: str = "image"
    label_column: str = "label"
    train_split: str = "train"
    test_split: str = "test"
    whole: bool = True  # at test time the whole image, resized; otherwise the model's own resize and centre crop
    task: TaskName = "classification"
    classes: tuple[str, ...] = ()  # their names, if the data set itself does not say
    # of the masks, where they are painted: those of classes 0, 1, … and at last that of no class
    colours: tuple[tuple[int, int, int], ...] = ()
    grey: bool = False  # the images have one channel: a model of one channel may have them
    # of the training pixels, for who trains from scratch; what the transforms take is always the model's own
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    @property
    def on_hub(self) -> bool:
        return "/" in self.dataset

    def local_copy(self) -> Path | None:
        """$HF_PX_DATA/<name>, if it is there."""
        home = os.environ.get("HF_PX_DATA")
        if not home or not self.on_hub:
            return None
        folder = Path(home).expanduser()
        if not folder.is_dir():
            raise ValueError(f"HF_PX_DATA={home}: no such folder; it should hold copies of data sets, as {self.name}/")
        return folder / self.name if (folder / self.name).exists() else None


PRESETS: Registry[Preset] = Registry("data set")

CIFAR = PadCrop(size=32, padding=4)
for _preset in (
    Preset(
        "digits",
        "Handwritten digits of scikit-learn",
        "scikit-learn-digits",
        "1,797 grey images of 8x8, no network",
        10,
        AsItIs(),  # the demo is to be quick and repeatable, and a flipped 2 is no digit
        grey=True,
        mean=(0.3060, 0.3060, 0.3060),
        std=(0.3765, 0.3765, 0.3765),
    ),
    Preset(
        "cifar10",
        "CIFAR-10",
        "uoft-cs/cifar10",
        "60,000 images of 32x32 in 10 classes",
        10,
        CIFAR,
        image_column="img",
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
    Preset(
        "cifar100",
        "CIFAR-100",
        "uoft-cs/cifar100",
        "60,000 images of 32x32 in 100 classes",
        100,
        CIFAR,
        image_column="img",
        label_column="fine_label",
        mean=(0.5071, 0.4866, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
    ),
    Preset(
        "tiny-imagenet",
        "Tiny-ImageNet",
        "zh-plus/tiny-imagenet",
        "110,000 images of 64x64 in 200 classes",
        200,
        ResizedCrop(scale=(0.1, 1.0), ratio=(0.8, 1.25)),
        test_split="valid",
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
    ),
    Preset(
        "imagenet-1k",
        "ImageNet-1k",
        "ILSVRC/imagenet-1k",
        "1.3 million photographs in 1,000 classes; its terms are accepted on the Hub, once",
        1000,
        ResizedCrop(scale=(0.2, 1.0), ratio=(3 / 4, 4 / 3), grey=0.2, jitter=0.4),
        test_split="validation",  # the labels of its test split are not public: all are -1
        whole=False,
    ),
    Preset(
        "voc2012",
        "Pascal VOC 2012",
        "nateraw/pascal-voc-2012",
        "2,913 photographs in which every pixel has one of 21 classes",
        21,
        ScaleCrop(),
        label_column="mask",
        test_split="val",
        task="segmentation",
        classes=VOC_CLASSES,
        colours=(*(voc_colour(label) for label in range(21)), voc_colour(255)),
    ),
):
    PRESETS.add(_preset.name, _preset)


def preset_of(source: str) -> Preset | None:
    """By name, or by the id on the Hub; a path never is one, whatever lies there."""
    for name in PRESETS:
        if source in (name, PRESETS[name].dataset):
            return PRESETS[name]
    return None
