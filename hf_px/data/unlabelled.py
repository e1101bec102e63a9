"""Images without labels, as a model expects them: for repair, which compares a network with itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..core.head import segments
from .columns import find_image_column
from .labelled_split import ReadColumn, Split
from .model_inputs import data_config
from .open_data import Data, open_data
from .presets import preset_of
from .pruning_set import load_pruning_set
from .source import NOISE, check_source, id_and_title, load_splits, not_rank_zero, on_disk
from .transforms import test_transform

BATCH_SIZE = 32


def load_images(
    source: str,
    model: nn.Module,
    count: int,
    seed: int = 0,
    *,
    split: str = "train",
    image_column: str | None = None,
    label_column: str | None = None,
) -> list[Tensor]:
    """Batches of `count` images drawn by `seed`, or of all if there are fewer; `source` as for open_data.

    A folder of bare images and a table without labels do, too. A segmenter's images come from pairs, or are noise.
    """
    check_source(source)
    images = data_config(model)
    if source == NOISE or segments(model):
        columns = {"image_column": image_column, "label_column": label_column}
        return [x for x, _ in load_pruning_set(source, model, 10, min(count, BATCH_SIZE), seed, split=split, **columns)]
    data = _open_images(source, split, image_column)
    return draw_images(data.train, test_transform(data, images), count, seed)


def some_images(source: str, count: int, seed: int = 0) -> list[Image.Image]:
    """`count` images of any split, drawn by `seed`, as they are, in RGB; all of them if there are fewer."""
    check_source(source)
    if source == NOISE:
        raise ValueError("`source` random is noise; name images, or omit it")
    images = _open_images(source, None, None).train
    return [images.image(index).convert("RGB") for index in _drawn(len(images), count, seed)]


def _drawn(total: int, count: int, seed: int) -> list[int]:
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    return sorted(order[:count].tolist())


def draw_images(split: Split, transform: Callable[[Any], Tensor], count: int, seed: int) -> list[Tensor]:
    """Batches of `count` transformed images of the split, drawn by `seed`; all of them if there are fewer."""
    chosen = _drawn(len(split), count, seed)
    bar = tqdm(chosen, desc="images", unit="image", delay=1.0, disable=not_rank_zero(), leave=False)
    drawn = torch.stack([transform(split.image(index)) for index in bar])
    return list(drawn.tensor_split(-(-len(drawn) // BATCH_SIZE)))  # equal sizes: batch norm needs more than one image


def _open_images(source: str, split: str | None, image_column: str | None) -> Data[Split]:
    """The images as `train`; without `split` those of the split train, or of the first one if there is none."""
    preset = preset_of(source)
    if preset and preset.name == "digits":
        return open_data(source, train_split=split, need_test=False)
    try:
        path = on_disk(source, preset, None)
        parts = load_splits(source, preset, path, None, None, None, split, "")
        split = split or ("train" if "train" in parts else next(iter(parts)))
        if split not in parts:
            raise ValueError(f"no split {split!r}; it has {', '.join(parts)}")
        column = find_image_column(parts[split], image_column, preset)
        if not len(parts[split]):
            raise ValueError(f"split {split!r} is empty")
        images = Split(torch.zeros(len(parts[split]), dtype=torch.long), ReadColumn(parts[split], column))
    except ValueError as error:
        raise ValueError(f"data {source}: {error}") from error
    return Data(source, *id_and_title(source, preset, path), (), images, images, "", preset)
