"""Pictures with masks as a training loop takes them: TrainPairs[(epoch, index)], TestPairs[index], pruning batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from tqdm.auto import tqdm

from ..load import elsewhere
from ..open_data import Data
from ..presets import ScaleCrop
from ..sampling import batches_of
from ..seeded import Seeded
from ..transforms import check_channels
from .letterbox import Fit, resized, resized_mask
from .pairs import Pairs


class TrainPairs(Seeded):
    """x, y = augment(image, mask; seed, epoch, index)."""

    def __init__(self, data: Data[Pairs], images: Mapping[str, Any], seed: int) -> None:
        check_channels(data, images)
        self.pairs = data.train
        vary = data.preset.augmentation if data.preset else None
        self.transform = VaryPair(vary if isinstance(vary, ScaleCrop) else ScaleCrop(), images)
        self.seed = seed

    def __len__(self) -> int:
        return len(self.pairs)

    def item(self, index: int) -> tuple[Tensor, Tensor]:
        return self.transform(self.pairs.image(index), self.pairs.mask(index))


class TestPairs(Dataset):
    """x, y = fit(image, mask): whole, never enlarged, nothing is random."""

    __test__ = False  # pytest takes classes called Test… for tests

    def __init__(self, data: Data[Pairs], images: Mapping[str, Any]) -> None:
        check_channels(data, images)
        self.pairs = data.test
        self.fit = Fit(images)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.fit(self.pairs.image(int(index)), self.pairs.mask(int(index)))


class VaryPair:
    """ScaleCrop of a picture and its mask, moved together: the same size, the same part, the same side first."""

    def __init__(self, vary: ScaleCrop, images: Mapping[str, Any]) -> None:
        self.vary, self.fit = vary, Fit(images)

    def __call__(self, image: Image.Image, mask: np.ndarray) -> tuple[Tensor, Tensor]:
        share, right, low, mirror = torch.rand(4).tolist()
        small, large = self.vary.scale
        scale = self.fit.scale(image) * (small + share * (large - small))
        width, height = (max(1, round(side * scale)) for side in image.size)
        image = resized(image, (width, height), Image.Resampling.BILINEAR)
        mask = resized_mask(mask, (width, height))
        # rand() < 1: at most all that is too much; none of a picture that is smaller
        left = int(right * (max(0, width - self.fit.width) + 1))
        top = int(low * (max(0, height - self.fit.height) + 1))
        right_end, low_end = min(width, left + self.fit.width), min(height, top + self.fit.height)
        image, mask = image.crop((left, top, right_end, low_end)), mask[top:low_end, left:right_end]
        if mirror < self.vary.flip:  # before the padding, which stays at the right and below
            image, mask = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), mask[:, ::-1]
        return self.fit.padded(image, mask.copy())  # torch takes no negative strides


def pair_batches(
    data: Data[Pairs], images: Mapping[str, Any], per_class: int = 10, batch_size: int = 100, seed: int = 0
) -> list[tuple[Tensor, Tensor]]:
    """Batches of training pictures, whole, `per_class` drawn by `seed` for each class from those in which it occurs.

    Equal on every process. Held in memory: 5.3 MB for a pair of 513x513, 1.1 GB for VOC's 21 classes at 10.
    """
    check_channels(data, images)
    chosen = draw_pairs(data.train, len(data.classes), per_class, seed)
    fit = Fit(images)
    x = torch.empty(len(chosen), *images["input_size"])
    y = torch.empty(len(chosen), *images["input_size"][1:], dtype=torch.int64)
    bar = tqdm(chosen, desc="pruning set", unit="image", delay=1.0, disable=elsewhere(), leave=False)
    for row, index in enumerate(bar):  # into place: a stack of them would take twice the memory
        x[row], y[row] = fit(data.train.image(index), data.train.mask(index))
    return batches_of(x, y, batch_size)


def draw_pairs(pairs: Pairs, num_classes: int, per_class: int, seed: int) -> list[int]:
    """Class by class in turn, each the next of its pictures in random order that none has taken.

    So a class is in at least `per_class` of them, or in all that have it: a picture taken for another counts as well.
    """
    if per_class < 1:
        raise ValueError(f"per_class is {per_class}; a pruning set needs at least 1 example per class")
    generator = torch.Generator().manual_seed(seed)
    queues = []
    for label in range(num_classes):
        members = [index for index in range(len(pairs)) if label in pairs.classes_in(index)]
        queues.append(iter([members[place] for place in torch.randperm(len(members), generator=generator)]))
    drawn: dict[int, None] = {}  # in order, none twice
    for _ in range(per_class):
        for queue in queues:
            index = next((index for index in queue if index not in drawn), None)
            if index is not None:
                drawn[index] = None
    return list(drawn)
