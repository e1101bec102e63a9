"""Images as a training loop takes them: TrainImages[(epoch, index)], TestImages[index], batches to prune by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from tqdm.auto import tqdm

from ..core.head import segments
from .batch_augment import together
from .labelled_split import Split
from .load import NOISE, check_source, elsewhere
from .model_inputs import check_labels, data_config, num_classes
from .open_data import Data, open_data
from .sampling import balanced, batches_of
from .seeded import Seeded, pair, uniforms
from .segmentation.datasets import pair_batches
from .transforms import test_transform, train_transform


class TrainImages(Seeded):
    """x = augment(image, seed, epoch, index); a batch at a time where the images are small and kept as they are."""

    def __init__(self, data: Data[Split], images: Mapping[str, Any], seed: int) -> None:
        self.split = data.train
        self.transform = train_transform(data, images)
        self.together = together(data, images)
        self.seed = seed

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int]:
        if self.together is None:
            return super().__getitem__(key)
        x, y = self.batch([key])
        return x[0], int(y[0])

    def batch(self, keys: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        if self.together is None:
            return super().batch(keys)
        epochs, indices = np.array([pair(key) for key in keys]).T
        pixels = self.split.pixels(indices, self.together.fit)
        return self.together(pixels, uniforms(self.seed, epochs, indices, 3)), self.split.labels[indices]

    def item(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.split.image(index)), int(self.split.labels[index])


class TestImages(Dataset):
    """x = transform(image): nothing is random."""

    __test__ = False  # pytest takes classes called Test… for tests

    def __init__(self, data: Data[Split], images: Mapping[str, Any]) -> None:
        self.split = data.test
        self.transform = test_transform(data, images)

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.split.image(int(index))), int(self.split.labels[index])


def pruning_batches(
    data: Data[Split], images: Mapping[str, Any], per_class: int = 10, batch_size: int = 100, seed: int = 0
) -> list[tuple[Tensor, Tensor]]:
    """B = ceil(|D|·|C| / b) batches of training images, `per_class` of each class, drawn by `seed`, not augmented.

    Equal on every process. Held in memory: 600 kB for an image of 224x224.
    """
    try:
        chosen = balanced(data.train.labels, per_class, seed, data.classes)
    except ValueError as error:
        raise ValueError(f"data {data.name}: {error}") from error
    transform = test_transform(data, images)
    bar = tqdm(chosen.tolist(), desc="pruning set", unit="image", delay=1.0, disable=elsewhere(), leave=False)
    drawn = torch.stack([transform(data.train.image(index)) for index in bar])
    return batches_of(drawn, data.train.labels[chosen], batch_size)


def load_pruning_set(
    source: str,
    model: nn.Module,
    per_class: int = 10,
    batch_size: int = 100,
    seed: int = 0,
    *,
    split: str = "train",
    image_column: str | None = None,
    label_column: str | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """Batches for `model`: images as it expects them, labels that it has, or masks where it answers for every pixel.

    `source` is as for open_data, or `random`: a single batch of noise, which fits any model.
    """
    check_source(source)
    images = data_config(model)
    classes = num_classes(model)
    if source == NOISE:
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(batch_size, *images["input_size"], generator=generator)
        shape = (batch_size, *images["input_size"][1:]) if segments(model) else (batch_size,)
        return [(noise, torch.randint(classes or 1, shape, generator=generator))]
    options: dict[str, Any] = {
        "train_split": split,
        "image_column": image_column,
        "label_column": label_column,
        "need_test": False,
    }
    if segments(model):
        pairs = open_data(source, **options, task="segmentation", num_classes=classes or None)
        check_labels(torch.tensor([pairs.train.highest()]), model)
        return pair_batches(pairs, images, per_class, batch_size, seed)
    data = open_data(source, **options)
    check_labels(data.train.labels, model)
    return pruning_batches(data, images, per_class, batch_size, seed)
