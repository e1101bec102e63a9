"""Batches to prune with: `per_class` training images of each class, or one batch of noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..core.head import segments
from ..core.options import renamed_arguments
from ..prune_config import DEFAULT_PER_CLASS
from .labelled_split import Split
from .model_inputs import check_labels, data_config, num_classes
from .open_data import Data, open_data
from .sampling import BATCH_SIZE, balanced, batches_of
from .segmentation.datasets import PAIR_BATCH_SIZE, pair_batches
from .source import NOISE, check_source, not_rank_zero
from .transforms import test_transform


def pruning_batches(
    data: Data[Split],
    images: Mapping[str, Any],
    per_class: int = DEFAULT_PER_CLASS,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
) -> list[tuple[Tensor, Tensor]]:
    """B = ceil(|D|·|C| / b) batches of training images, `per_class` of each class, drawn by `seed`, not augmented.

    Equal on every process. Kept in memory: 600 kB for an image of 224x224.
    """
    try:
        chosen = balanced(data.train.labels, per_class, seed, data.classes)
    except ValueError as error:
        raise ValueError(f"data {data.name}: {error}") from error
    transform = test_transform(data, images)
    bar = tqdm(chosen.tolist(), desc="pruning set", unit="image", delay=1.0, disable=not_rank_zero(), leave=False)
    drawn = torch.stack([transform(data.train.image(index)) for index in bar])
    return batches_of(drawn, data.train.labels[chosen], batch_size)


def load_pruning_set(
    source: str,
    model: nn.Module,
    per_class: int = DEFAULT_PER_CLASS,
    batch_size: int | None = None,
    seed: int = 0,
    *,
    split: str = "train",
    image_column: str | None = None,
    label_column: str | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """Batches for `model`: images as it expects them, with labels, or label maps if it is a segmenter.

    `source` as for open_data, or `random`: a single batch of noise, which fits any model. By default a batch has 100
    images, or 8 with label maps.
    """
    check_source(source)
    if batch_size is None:
        batch_size = PAIR_BATCH_SIZE if segments(model) else BATCH_SIZE
    images = data_config(model)
    classes = num_classes(model)
    if source == NOISE:
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(batch_size, *images["input_size"], generator=generator)
        shape = (batch_size, *images["input_size"][1:]) if segments(model) else (batch_size,)
        return [(noise, torch.randint(classes or 1, shape, generator=generator))]
    options: dict[str, Any] = {"image_column": image_column, "label_column": label_column, "need_test": False}
    if segments(model):
        options |= {"task": "segmentation", "num_classes": classes or None}
    with renamed_arguments(train_split="split"):
        data = open_data(source, train_split=split, **options)
    if segments(model):
        check_labels(torch.tensor([data.train.highest()]), model)
        return pair_batches(data, images, per_class, batch_size, seed)
    check_labels(data.train.labels, model)
    return pruning_batches(data, images, per_class, batch_size, seed)
