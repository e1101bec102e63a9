"""Images as datasets of a training loop: TrainImages[(epoch, index)], TestImages[index]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from .labelled_split import Split
from .open_data import Data
from .seeded import SeededDataset, epoch_and_index, uniforms
from .transforms import batch_augment, test_transform, train_transform


class TrainImages(SeededDataset):
    """x = augment(image, seed, epoch, index); whole batches at once if the images are small and kept in memory."""

    def __init__(self, data: Data[Split], images: Mapping[str, Any], seed: int) -> None:
        self.split: Split = data.train
        self.transform = train_transform(data, images)
        self.batch_augment = batch_augment(data, images)
        self.seed = seed

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int]:
        if self.batch_augment is None:
            return super().__getitem__(key)
        x, y = self.batch([key])
        return x[0], int(y[0])

    def batch(self, keys: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        if self.batch_augment is None:
            return super().batch(keys)
        epochs, indices = np.array([epoch_and_index(key) for key in keys]).T
        pixels = self.split.pixels(indices, self.batch_augment.resized_pixels)
        return self.batch_augment(pixels, uniforms(self.seed, epochs, indices, 3)), self.split.labels[indices]

    def item(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.split.image(index)), int(self.split.labels[index])


class TestImages(Dataset):
    """x = transform(image), without randomness."""

    __test__ = False  # not a test class for pytest

    def __init__(self, data: Data[Split], images: Mapping[str, Any]) -> None:
        self.split = data.test
        self.transform = test_transform(data, images)

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.split.image(int(index))), int(self.split.labels[index])
