"""Images without labels, as a model expects them: for repair, which compares a network with itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
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
    if (preset := preset_of(source)) and preset.name == "digits":
        data = open_data(source, train_split=split, need_test=False)
    else:
        data = _open_unlabelled(source, split, image_column)
    return draw_images(data.train, test_transform(data, images), count, seed)


def draw_images(split: Split, transform: Callable[[Any], Tensor], count: int, seed: int) -> list[Tensor]:
    """Batches of `count` transformed images of the split, drawn by `seed`; all of them if there are fewer."""
    chosen = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))[:count].sort().values
    bar = tqdm(chosen.tolist(), desc="images", unit="image", delay=1.0, disable=not_rank_zero(), leave=False)
    drawn = torch.stack([transform(split.image(index)) for index in bar])
    return list(drawn.tensor_split(-(-len(drawn) // BATCH_SIZE)))  # equal sizes: batch norm needs more than one image


def _open_unlabelled(source: str, split: str, image_column: str | None) -> Data[Split]:
    preset = preset_of(source)
    try:
        path = on_disk(source, preset, None)
        parts = load_splits(source, preset, path, None, None, None, split, "")
        if split not in parts:
            raise ValueError(f"no split {split!r}; it has {', '.join(parts)}")
        column = find_image_column(parts[split], image_column, preset)
        if not len(parts[split]):
            raise ValueError(f"split {split!r} is empty")
        images = Split(torch.zeros(len(parts[split]), dtype=torch.long), ReadColumn(parts[split], column))
    except ValueError as error:
        raise ValueError(f"data {source}: {error}") from error
    return Data(source, *id_and_title(source, preset, path), (), images, images, "", preset)
