"""Images and labels to score by: |D| per class, balanced, seeded, drawn once; B = ceil(|D|·|C| / b) batches.

Sources: `digits` (ships with scikit-learn), a folder or parquet file or Hub data set through `datasets`, or noise.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")
BUILT_IN = {
    "digits": "scikit-learn's handwritten digits, no network",
    "random": "Gaussian noise with random labels, one batch: to try a command out, not to prune by",
}


class Examples(NamedTuple):
    images: Tensor  # N x C x H x W, float32, normalised
    labels: Tensor  # N, int64


def digits(size: int | tuple[int, int] = 32) -> tuple[Examples, Examples]:
    """(train, test) of scikit-learn's 8x8 digits, enlarged to size x size RGB: 1,437 and 360 images, 36 per class.

    Normalised to mean 0 and deviation 1 over the training pixels. The split is always the same.
    """
    train, test = _small_digits()
    return Examples(_enlarge(train.images, size), train.labels), Examples(_enlarge(test.images, size), test.labels)


def pruning_set(images: Tensor, labels: Tensor, per_class: int = 10, seed: int = 0) -> Examples:
    """`per_class` examples of every class, class by class in turn, so that any stretch of them is balanced too."""
    chosen = balanced(labels, per_class, seed)
    return Examples(images[chosen], labels[chosen])


def balanced(labels: Tensor, per_class: int, seed: int = 0, names: Sequence[str] | None = None) -> Tensor:
    """Indices of `per_class` examples of each class that occurs; `names` makes the error say which class is short."""
    if per_class < 1:
        raise ValueError(f"per_class is {per_class}; a pruning set needs at least 1 example per class")
    if not len(labels):
        raise ValueError("the data set is empty; there is nothing to draw a pruning set from")
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().view(-1)
        if len(members) < per_class:
            name = f"class {label}" + (f" ({names[label]})" if names else "")
            raise ValueError(f"{name} has {len(members)} examples, {per_class} per class asked; ask for fewer")
        drawn.append(members[torch.randperm(len(members), generator=generator)[:per_class]])
    return torch.stack(drawn, dim=1).view(-1)


def batches_of(images: Tensor, labels: Tensor, batch_size: int) -> list[tuple[Tensor, Tensor]]:
    """ceil(n / batch_size) batches, sizes equal up to one: a last batch of one image would have no statistics."""
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
    if len(images) != len(labels):
        raise ValueError(f"{len(images)} images, but {len(labels)} labels")
    count = -(-len(images) // batch_size)
    return list(zip(images.tensor_split(count), labels.tensor_split(count))) if count else []


def check_source(source: str) -> None:
    """Refuse what is neither built in, nor on this disk, nor written like a Hub id; touches no network."""
    if source in BUILT_IN or Path(source).expanduser().exists() or _is_hub_id(source):
        return
    near = difflib.get_close_matches(source, BUILT_IN, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ValueError(
        f"data {source!r}: no such file or folder; {hint}Built in are {' and '.join(BUILT_IN)}; "
        "a Hub data set is written org/name, for example uoft-cs/cifar10"
    )


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
    """Batches for `model`: images as it expects them, held in memory (600 kB each at 224x224), labels that it has.

    `source` is `digits`, `random`, a folder (one sub-folder per class, or parquet files), a parquet file, or a Hub
    data set `org/name`, the only one that uses the network. `random` is a single batch of noise.
    """
    check_source(source)
    config = data_config(model)
    channels, *size = config["input_size"]
    if source == "random":
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(batch_size, channels, *size, generator=generator)
        return [(noise, torch.randint(num_classes(model) or 1, (batch_size,), generator=generator))]
    if channels != 3:
        raise ValueError(f"the model takes {channels} channels, {source} has RGB images; data 'random' fits any model")
    if source == "digits":
        small = _small_digits()[0]
        _check_labels(small.labels, model)
        images, labels = pruning_set(*small, per_class, seed)
        return batches_of(_enlarge(images, (size[0], size[1])), labels, batch_size)

    dataset = _load(source, split)
    image_column = _column(dataset, "image", image_column, IMAGE_COLUMNS, _images)
    label_column = _column(dataset, "label", label_column, LABEL_COLUMNS, _class_labels)
    labels, names = _labels(dataset, label_column)
    _check_labels(labels, model)
    chosen = balanced(labels, per_class, seed, names)
    return batches_of(_decode(dataset, image_column, chosen, config), labels[chosen], batch_size)


def data_config(model: nn.Module) -> dict[str, Any]:
    """The images that the model expects, in timm's words: input_size, mean, std, interpolation, crop_pct, crop_mode."""
    from timm.data import resolve_data_config, resolve_model_data_config

    model = getattr(model, "timm_model", model)  # transformers' wrapper around timm models
    if isinstance(getattr(model, "pretrained_cfg", None), Mapping):
        return resolve_model_data_config(model)
    config = getattr(model, "config", None)
    if config is None:
        raise ValueError(
            f"{type(model).__name__} does not say what images it expects: it has neither timm's pretrained_cfg nor a "
            "transformers config; make the batches yourself"
        )
    config = getattr(config, "vision_config", config)
    size = getattr(config, "image_size", None) or 224  # ResNet and ConvNeXt take any size and name none
    height, width = (size, size) if isinstance(size, int) else size
    # no pretrained_cfg: mean and std are ImageNet's
    return resolve_data_config({"input_size": (getattr(config, "num_channels", 3), height, width)})


def num_classes(model: nn.Module) -> int | None:
    """How many classes the model tells apart; None if it does not say, 0 if it has no head."""
    for owner, name in ((model, "num_classes"), (getattr(model, "config", None), "num_labels")):
        found = getattr(owner, name, None)
        if isinstance(found, int):
            return found
    return None


def _small_digits() -> tuple[Examples, Examples]:
    from sklearn.datasets import load_digits

    data = load_digits()
    grey = torch.as_tensor(data.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.as_tensor(data.target, dtype=torch.int64)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    held_out[balanced(labels, per_class=36, seed=0)] = True
    mean, std = grey[~held_out].mean(), grey[~held_out].std()
    grey = (grey - mean) / std
    return Examples(grey[~held_out], labels[~held_out]), Examples(grey[held_out], labels[held_out])


def _enlarge(grey: Tensor, size: int | tuple[int, int]) -> Tensor:
    size = (size, size) if isinstance(size, int) else size
    return F.interpolate(grey, size, mode="bilinear", align_corners=False).repeat(1, 3, 1, 1)


def _check_labels(labels: Tensor, model: nn.Module) -> None:
    classes = num_classes(model)
    low, high = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
    if low < 0:
        raise ValueError(f"label {low}: labels count from 0; examples without a label must go, or take another split")
    if classes and high >= classes:
        raise ValueError(
            f"labels run to {high}, but the model has {classes} classes; "
            f"give it num_classes={high + 1} (--num-classes {high + 1})"
        )


def _is_hub_id(source: str) -> bool:
    # a bare word or something like a path is a slip more often than a data set: it must not reach the network
    return bool(re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", source)) and not source.endswith((".parquet", ".zip", ".csv"))


def _load(source: str, split: str) -> Any:
    import datasets

    path = Path(source).expanduser()
    try:
        if path.is_file():
            if path.suffix != ".parquet":
                raise ValueError("a single file must be a .parquet file; images go in folders, one per class")
            found = datasets.load_dataset("parquet", data_files={split: str(path)})
        else:
            found = datasets.load_dataset(str(path.resolve()) if path.exists() else source)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise ValueError(f"data {source}: {str(error) or type(error).__name__}") from error
    if split not in found:
        raise ValueError(f"data {source}: no split {split!r}; it has {', '.join(found)}")
    return found[split]


def _column(dataset: Any, role: str, asked: str | None, usual: Sequence[str], by_type: Any) -> str:
    """The column asked for; else one of the usual names; else the only one of the right type."""
    columns = dataset.column_names
    if asked is not None:
        if asked not in columns:
            raise ValueError(f"{role} column {asked!r} is not in the data; it has {', '.join(columns)}")
        return asked
    found = [name for name in usual if name in columns] or by_type(dataset)
    if not found or (found[0] not in usual and len(found) > 1):
        raise ValueError(
            f"which column is the {role}? None is called {' or '.join(usual)}; the data has {', '.join(columns)}: "
            f"name one with {role}_column (--{role}-column)"
        )
    return found[0]


def _images(dataset: Any) -> list[str]:
    import datasets

    return [name for name, feature in dataset.features.items() if isinstance(feature, datasets.Image)]


def _class_labels(dataset: Any) -> list[str]:
    import datasets

    return [name for name, feature in dataset.features.items() if isinstance(feature, datasets.ClassLabel)]


def _labels(dataset: Any, column: str) -> tuple[Tensor, Sequence[str] | None]:
    """Labels as numbers, and their names if they have any; words are numbered in alphabetical order."""
    names = getattr(dataset.features[column], "names", None)
    values = dataset.select_columns([column])[:][column]  # the column alone: no image is decoded
    kinds = {type(value) for value in values}
    if kinds == {str}:
        names = sorted(set(values))
        number = {name: i for i, name in enumerate(names)}
        values = [number[value] for value in values]
    elif kinds - {int}:
        odd = sorted(kind.__name__ for kind in kinds - {int})[0]
        raise ValueError(f"label column {column!r} holds {odd}; expected one whole number or word per image")
    return torch.tensor(values, dtype=torch.int64), names


def _decode(dataset: Any, column: str, indices: Tensor, config: Mapping[str, Any]) -> Tensor:
    import datasets
    from timm.data import create_transform

    if not isinstance(dataset.features[column], datasets.Image):
        try:  # parquet written without datasets: {bytes, path} or bare bytes
            dataset = dataset.cast_column(column, datasets.Image())
        except (TypeError, ValueError, NotImplementedError) as error:
            raise ValueError(f"image column {column!r} holds {dataset.features[column]}, not images") from error
    transform = create_transform(**config, is_training=False)
    images = dataset.select(indices.tolist()).select_columns([column])
    return torch.stack([transform(row[column].convert("RGB")) for row in images])
