"""Which column is the image, which the label or mask, which split is the test: found, or asked for by the choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .presets import Preset

USUAL = {"image": ("image", "img"), "label": ("label", "labels", "fine_label")}
MASKS = ("mask", "label", "labels", "annotation", "segmentation_mask")
TEST_SPLITS = ("test", "validation", "valid", "val")


def _find_column(dataset: Any, role: Literal["image", "label"], asked: str | None, preset: Preset | None) -> str:
    """The column asked for; else the preset's; else one of the usual names; else the only one of the right type."""
    import datasets

    columns = dataset.column_names
    if asked is not None:
        if asked not in columns:
            raise ValueError(f"{role} column {asked!r} is not in the data; it has {', '.join(columns)}")
        return asked
    if preset:
        known = preset.image_column if role == "image" else preset.label_column
        if known in columns:
            return known
    kind = datasets.Image if role == "image" else datasets.ClassLabel
    usual = USUAL[role]
    by_type = [name for name, feature in dataset.features.items() if isinstance(feature, kind)]
    found = [name for name in usual if name in columns] or by_type
    if not found or (found[0] not in usual and len(found) > 1):
        raise ValueError(
            f"which column is the {role}? None is called {' or '.join(usual)}; the data has {', '.join(columns)}: "
            f"name one with {role}_column (--{role}_column; hf-px prune --{role}-column)"
        )
    return found[0]


def image_column_of(dataset: Any, asked: str | None, preset: Preset | None) -> str:
    """Found as above, and it does hold images: as such, or as files in bytes."""
    import datasets

    column = _find_column(dataset, "image", asked, preset)
    if not isinstance(dataset.features[column], datasets.Image):
        try:  # parquet written without datasets: {bytes, path} or bare bytes
            dataset.cast_column(column, datasets.Image())
        except (TypeError, ValueError, NotImplementedError) as error:
            raise ValueError(
                f"image column {column!r} holds {dataset.features[column]}, not images; the data has "
                f"{', '.join(dataset.column_names)}: name another with --image_column"
            ) from error
    return column


def label_column_of(dataset: Any, asked: str | None, preset: Preset | None) -> str:
    """Found as above, and it does not hold masks."""
    import datasets

    pictures = [name for name, feature in dataset.features.items() if isinstance(feature, datasets.Image)]
    masks = [name for name in pictures if name == asked or (name in MASKS and asked is None)]
    others = [name for name in USUAL["label"] if name in dataset.column_names and name not in pictures]
    if masks and not (others and asked is None):
        raise ValueError(
            f"column {masks[0]!r} holds pictures: masks are for a model that answers for every pixel; one that has one "
            f"answer for a picture needs labels. The data has {', '.join(dataset.column_names)}"
        )
    return _find_column(dataset, "label", asked, preset)


def mask_column_of(dataset: Any, asked: str | None, image_column: str, preset: Preset | None) -> str:
    """The column asked for; else the preset's; else of the usual names one with pictures; else the only second one."""
    import datasets

    columns = dataset.column_names
    has = f"the data has {', '.join(columns)}"
    if asked is not None and (asked not in columns or asked == image_column):
        why = "holds the pictures themselves" if asked in columns else "is not in the data"
        raise ValueError(f"mask column {asked!r} {why}; {has}: name another with --label_column")
    pictures = [name for name, feature in dataset.features.items() if isinstance(feature, datasets.Image)]
    usual = [*([preset.label_column] if preset else []), *MASKS]
    named = [asked] if asked is not None else [name for name in usual if name in columns and name != image_column]
    for name in named:
        if name in pictures or _holds_files(dataset, name):
            return name
    second = [name for name in pictures if name != image_column]
    if asked is None and len(second) == 1:
        return second[0]
    if named:
        raise ValueError(
            f"column {named[0]!r} holds {_kind(dataset.features[named[0]])}, not masks: a model that answers for every "
            f"pixel needs a picture with the class of each; {has}: name another with --label_column"
        )
    raise ValueError(
        f"which column is the mask? None is called {' or '.join(MASKS)}; {has}: name one with --label_column"
    )


def find_test_split(
    parts: Mapping[str, Any], asked: str | None, train: str, labelled: Callable[[str], bool], preset: Preset | None
) -> str:
    """The split asked for; else the preset's; else the first of test, validation, valid, val that has labels."""
    choices = [name for name in parts if name != train]
    has = f"it has {', '.join(parts)}"
    if asked is not None:
        if asked == train:
            raise ValueError(f"split {asked!r} is the one to learn from; {has}: test on another (--test_split)")
        if asked not in parts:
            raise ValueError(f"no split {asked!r}; {has}")
        return asked
    usual = [*([preset.test_split] if preset else []), *TEST_SPLITS]
    for name in usual:
        if name in choices and labelled(name):
            return name
    raise ValueError(
        f"no split to test on: none of {', '.join(TEST_SPLITS)} is there with labels; {has}: "
        "name one with test_split (--test_split)"
    )


class Labels(NamedTuple):
    values: list[int] | list[str]
    names: Sequence[str] | None  # of the numbers, if the data set says


def read_labels(dataset: Any, column: str, split: str) -> Labels:
    """One whole number or one word for each image, or an error; the column alone: no image is decoded."""
    if column not in dataset.column_names:
        raise ValueError(f"split {split!r} has no column {column!r}; it has {', '.join(dataset.column_names)}")
    values = _column(dataset, column)
    if not values:
        raise ValueError(f"split {split!r} is empty")
    kinds = {type(value) for value in values}
    if kinds not in ({int}, {str}):
        odd = sorted(kind.__name__ for kind in kinds - {int, str})[0]
        where = next(i for i, value in enumerate(values) if type(value).__name__ == odd)
        raise ValueError(
            f"label column {column!r} holds {odd} (split {split!r}, row {where}); expected one whole number or word "
            f"per image. The data has {', '.join(dataset.column_names)}: name another with --label_column"
        )
    if kinds == {int} and min(values) < 0:
        raise ValueError(
            f"label {min(values)} in split {split!r}: labels count from 0; "
            "examples without a label must go, or take another split"
        )
    return Labels(values, getattr(dataset.features[column], "names", None))


def number_labels(splits: Mapping[str, Labels], preset: Preset | None) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """({split: int64 labels}, class names): words are numbered in alphabetical order, by the first split's."""
    first, *others = splits
    values, names = splits[first]
    words = isinstance(values[0], str)
    if words:
        names = sorted({str(word) for word in values})
    nameless = names is None
    if names is None:
        count = max(max(values) + 1, preset.num_classes if preset else 0)  # type: ignore[operator]
        names = [str(i) for i in range(count)]
    for other in others:
        _check_same(first, names, nameless, words, other, splits[other])
    if preset and len(names) != preset.num_classes:
        raise ValueError(f"{len(names)} classes, but {preset.title} has {preset.num_classes}; is it another data set?")
    number = {name: i for i, name in enumerate(names)}
    return {
        split: torch.tensor([number[v] for v in labels.values] if words else labels.values, dtype=torch.int64)  # type: ignore[index]
        for split, labels in splits.items()
    }, tuple(names)


def _check_same(first: str, names: Sequence[str], nameless: bool, words: bool, other: str, labels: Labels) -> None:
    """Both splits must mean the same by a label."""
    if words != isinstance(labels.values[0], str) or (not words and nameless != (labels.names is None)):
        raise ValueError(f"the class names of {first!r} and {other!r} differ: one has words, the other only numbers")
    if words:
        new = sorted({str(word) for word in labels.values} - set(names))
        if new:
            raise ValueError(f"the class names of {first!r} and {other!r} differ: {first!r} has no {new[0]!r}")
    elif labels.names is not None and list(labels.names) != list(names):
        pairs = [*zip(names, labels.names), (f"{len(names)} names", f"{len(labels.names)} names")]
        here, there = next(pair for pair in pairs if pair[0] != pair[1])
        raise ValueError(f"the class names of {first!r} and {other!r} differ: {here!r} and {there!r}")
    elif labels.names is None and max(labels.values) >= len(names):  # type: ignore[operator]
        raise ValueError(f"labels of {other!r} run to {max(labels.values)}, those of {first!r} to {len(names) - 1}")


def has_labels(dataset: Any, column: str) -> bool:
    if column not in dataset.column_names:
        return False
    values = _column(dataset, column)
    return any(value != -1 and value is not None for value in values)


def has_masks(dataset: Any, column: str) -> bool:
    """Whether there is one: the first that is found will do."""
    import datasets

    if column not in dataset.column_names:
        return False
    rows = dataset.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    return any(row[column] is not None for row in rows)


def _holds_files(dataset: Any, column: str) -> bool:
    """Parquet written without datasets has pictures as {bytes, path} or bare bytes; words are no paths to masks."""
    feature = dataset.features[column]
    return (isinstance(feature, dict) and "bytes" in feature) or getattr(feature, "dtype", None) in (
        "binary",
        "large_binary",
    )


def _kind(feature: Any) -> str:
    return {"ClassLabel": "labels", "Value": f"values of type {getattr(feature, 'dtype', '')}"}.get(
        type(feature).__name__, type(feature).__name__
    )


def _column(dataset: Any, column: str) -> list:
    return dataset.select_columns([column])[:][column]
