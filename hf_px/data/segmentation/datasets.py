"""Images with label maps for training and pruning: TrainPairs[(epoch, index)], TestPairs[index], pair_batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from tqdm.auto import tqdm

from ...prune_config import DEFAULT_PER_CLASS
from ..open_data import Data
from ..presets import ScaleCrop
from ..sampling import batches_of
from ..seeded import SeededDataset
from ..source import not_rank_zero
from ..transforms import check_channels
from .letterbox import Letterbox, resize_image, resize_label_map
from .pairs import Pairs

PAIR_BATCH_SIZE = 8  # pairs per batch of a pruning set; images with label maps are large


class TrainPairs(SeededDataset):
    """x, y = augment(image, labels; seed, epoch, index)."""

    def __init__(self, data: Data[Pairs], images: Mapping[str, Any], seed: int) -> None:
        check_channels(data, images)
        self.split: Pairs = data.train
        vary = data.preset.augmentation if data.preset else None
        self.transform = ScaleCropFlip(vary if isinstance(vary, ScaleCrop) else ScaleCrop(), images)
        self.seed = seed

    def item(self, index: int) -> tuple[Tensor, Tensor]:
        return self.transform(self.split.image(index), self.split.label_map(index))


class TestPairs(Dataset):
    """x, y = letterbox(image, labels): the whole image, never enlarged, without randomness."""

    __test__ = False  # not a test class for pytest

    def __init__(self, data: Data[Pairs], images: Mapping[str, Any]) -> None:
        check_channels(data, images)
        self.pairs = data.test
        self.letterbox = Letterbox(images)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.letterbox(self.pairs.image(int(index)), self.pairs.label_map(int(index)))


class ScaleCropFlip:
    """ScaleCrop of an image and its label map: both get the same size, crop and flip."""

    def __init__(self, vary: ScaleCrop, images: Mapping[str, Any]) -> None:
        self.vary, self.letterbox = vary, Letterbox(images)

    def __call__(self, image: Image.Image, labels: np.ndarray) -> tuple[Tensor, Tensor]:
        share, right, low, mirror = torch.rand(4).tolist()
        small, large = self.vary.scale
        scale = self.letterbox.scale(image) * (small + share * (large - small))
        width, height = (max(1, round(side * scale)) for side in image.size)
        image = resize_image(image, (width, height), Image.Resampling.BILINEAR)
        labels = resize_label_map(labels, (width, height))
        box = self.letterbox
        # rand() < 1: the crop stays inside the image; an image smaller than the input is not cropped
        left = int(right * (max(0, width - box.width) + 1))
        top = int(low * (max(0, height - box.height) + 1))
        right_end, low_end = min(width, left + box.width), min(height, top + box.height)
        image, labels = image.crop((left, top, right_end, low_end)), labels[top:low_end, left:right_end]
        if mirror < self.vary.flip:  # before the padding, which stays on the right and at the bottom
            image, labels = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), labels[:, ::-1]
        return box.padded(image, labels.copy())  # torch does not support negative strides


def pair_batches(
    data: Data[Pairs],
    images: Mapping[str, Any],
    per_class: int = DEFAULT_PER_CLASS,
    batch_size: int = PAIR_BATCH_SIZE,
    seed: int = 0,
) -> list[tuple[Tensor, Tensor]]:
    """Batches of whole training images; for each class, `per_class` images that contain it are drawn by `seed`.

    Equal on every process. Kept in memory: 5.3 MB for a pair of 513x513, 1.1 GB for VOC's 21 classes at 10.
    """
    check_channels(data, images)
    chosen = draw_pairs(data.train, len(data.classes), per_class, seed)
    letterbox = Letterbox(images)
    x = torch.empty(len(chosen), *images["input_size"])
    y = torch.empty(len(chosen), *images["input_size"][1:], dtype=torch.int64)
    bar = tqdm(chosen, desc="pruning set", unit="image", delay=1.0, disable=not_rank_zero(), leave=False)
    for row, index in enumerate(bar):  # in place: stacking would take twice the memory
        x[row], y[row] = letterbox(data.train.image(index), data.train.label_map(index))
    return batches_of(x, y, batch_size)


def draw_pairs(pairs: Pairs, num_classes: int, per_class: int, seed: int) -> list[int]:
    """Indices of images: classes take turns, and each takes the next unused image that contains it, in random order.

    Each class is then in at least `per_class` images, or in all that contain it; images taken for other classes count.
    """
    if per_class < 1:
        raise ValueError(f"`per_class` is {per_class}; a pruning set needs at least 1 example per class")
    generator = torch.Generator().manual_seed(seed)
    queues = []
    for label in range(num_classes):
        members = [index for index in range(len(pairs)) if label in pairs.classes_in(index)]
        queues.append(iter([members[place] for place in torch.randperm(len(members), generator=generator)]))
    drawn: dict[int, None] = {}  # an ordered set
    for _ in range(per_class):
        for queue in queues:
            index = next((index for index in queue if index not in drawn), None)
            if index is not None:
                drawn[index] = None
    return list(drawn)
