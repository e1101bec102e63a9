"""Find the columns of images and labels (or label maps) and the test split, or raise with the choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .presets import Preset

USUAL_COLUMNS = {"image": ("image", "img"), "label": ("label", "labels", "fine_label")}
LABEL_MAP_COLUMNS = ("mask", "label", "labels", "annotation", "segmentation_mask")
TEST_SPLITS = ("test", "validation", "valid", "val")


def _find_column(dataset: Any, role: Literal["image", "label"], given: str | None, preset: Preset | None) -> str:
    """The column given, else that of the preset, else one with a usual name, else the only one of the right type."""
    import datasets

    columns = dataset.column_names
    if given is not None:
        if given not in columns:
            raise ValueError(f"`{role}_column` {given!r} is not in the data; it has {', '.join(columns)}")
        return given
    if preset:
        known = preset.image_column if role == "image" else preset.label_column
        if known in columns:
            return known
    kind = datasets.Image if role == "image" else datasets.ClassLabel
    usual = USUAL_COLUMNS[role]
    by_type = [name for name, feature in dataset.features.items() if isinstance(feature, kind)]
    found = [name for name in usual if name in columns] or by_type
    if not found or (found[0] not in usual and len(found) > 1):
        raise ValueError(
            f"no {role} column found: none is called {' or '.join(usual)}; the data has {', '.join(columns)}: "
            f"set `{role}_column`"
        )
    return found[0]


def find_image_column(dataset: Any, given: str | None, preset: Preset | None) -> str:
    """The image column, checked to hold images or encoded image files."""
    import datasets

    column = _find_column(dataset, "image", given, preset)
    if not isinstance(dataset.features[column], datasets.Image):
        try:  # parquet written without datasets: {bytes, path} or bare bytes
            dataset.cast_column(column, datasets.Image())
        except (TypeError, ValueError, NotImplementedError) as error:
            raise ValueError(
                f"column {column!r} holds {dataset.features[column]}, not images; the data has "
                f"{', '.join(dataset.column_names)}: set `image_column` to another"
            ) from error
    return column


def find_label_column(dataset: Any, given: str | None, preset: Preset | None) -> str:
    """The label column, checked not to hold label maps."""
    images = _image_columns(dataset)
    label_maps = [name for name in images if name == given or (name in LABEL_MAP_COLUMNS and given is None)]
    others = [name for name in USUAL_COLUMNS["label"] if name in dataset.column_names and name not in images]
    if label_maps and not (others and given is None):
        raise ValueError(
            f"column {label_maps[0]!r} holds images: label maps are for segmentation; a classifier needs one label per "
            f"image. The data has {', '.join(dataset.column_names)}"
        )
    return _find_column(dataset, "label", given, preset)


def find_label_map_column(dataset: Any, given: str | None, image_column: str, preset: Preset | None) -> str:
    """The column given, else that of the preset, else images with a usual name, else the only other image column."""
    columns = dataset.column_names
    has = f"the data has {', '.join(columns)}"
    if given is not None and (given not in columns or given == image_column):
        why = "holds the images themselves" if given in columns else "is not in the data"
        raise ValueError(f"`label_column` {given!r} {why}; {has}: name another")
    images = _image_columns(dataset)
    usual = [*([preset.label_column] if preset else []), *LABEL_MAP_COLUMNS]
    named = [given] if given is not None else [name for name in usual if name in columns and name != image_column]
    for name in named:
        if name in images or _holds_files(dataset, name):
            return name
    others = [name for name in images if name != image_column]
    if given is None and len(others) == 1:
        return others[0]
    if named:
        raise ValueError(
            f"column {named[0]!r} holds {_kind(dataset.features[named[0]])}, not label maps: segmentation needs an "
            f"image with the class of each pixel; {has}: set `label_column` to another"
        )
    raise ValueError(
        f"no column of label maps found: none is called {' or '.join(LABEL_MAP_COLUMNS)}; {has}: set `label_column`"
    )


def _image_columns(dataset: Any) -> list[str]:
    import datasets

    return [name for name, feature in dataset.features.items() if isinstance(feature, datasets.Image)]


def find_test_split(
    parts: Mapping[str, Any],
    given: str | None,
    train: str,
    labelled: Callable[[str], bool],
    preset: Preset | None,
    needed: bool = True,
) -> str:
    """The split given, else that of the preset, else the first of test, validation, valid, val that has labels.

    An empty name if there is none and none is needed.
    """
    choices = [name for name in parts if name != train]
    has = f"it has {', '.join(parts)}"
    if given is not None:
        if given == train:
            raise ValueError(f"`test_split` {given!r} is the training split; {has}: name another")
        if given not in parts:
            raise ValueError(f"no split {given!r}; {has}")
        return given
    usual = [*([preset.test_split] if preset else []), *TEST_SPLITS]
    for name in usual:
        if name in choices and labelled(name):
            return name
    if not needed:
        return ""
    raise ValueError(f"no test split with labels: none of {', '.join(TEST_SPLITS)}; {has}: set `test_split`")


class Labels(NamedTuple):
    values: list[int] | list[str]
    names: Sequence[str] | None  # names of the classes, if the data set has them


def read_labels(dataset: Any, column: str, split: str) -> Labels:
    """One integer or string per image, or an error; reads this column only and decodes no image."""
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
            f"label column {column!r} holds {odd} (split {split!r}, row {where}); expected one integer or string per "
            f"image. The data has {', '.join(dataset.column_names)}: set `label_column` to another"
        )
    if kinds == {int} and min(values) < 0:
        raise ValueError(
            f"label {min(values)} in split {split!r}: labels start at 0; remove the examples without a label, or use "
            "another split"
        )
    return Labels(values, getattr(dataset.features[column], "names", None))


def number_labels(splits: Mapping[str, Labels], preset: Preset | None) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """({split: int64 labels}, class names); strings are numbered in the alphabetical order of the first split."""
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
    """Raise if a label means different classes in the two splits."""
    if words != isinstance(labels.values[0], str) or (not words and nameless != (labels.names is None)):
        raise ValueError(f"the class names of {first!r} and {other!r} differ: one has names, the other only numbers")
    if words:
        new = sorted({str(word) for word in labels.values} - set(names))
        if new:
            raise ValueError(f"the class names of {first!r} and {other!r} differ: {first!r} has no {new[0]!r}")
    elif labels.names is not None and list(labels.names) != list(names):
        pairs = [*zip(names, labels.names), (f"{len(names)} names", f"{len(labels.names)} names")]
        here, there = next(pair for pair in pairs if pair[0] != pair[1])
        raise ValueError(f"the class names of {first!r} and {other!r} differ: {here!r} and {there!r}")
    elif labels.names is None and max(labels.values) >= len(names):  # type: ignore[operator]
        raise ValueError(f"labels of {other!r} go up to {max(labels.values)}, those of {first!r} to {len(names) - 1}")


def has_labels(dataset: Any, column: str) -> bool:
    if column not in dataset.column_names:
        return False
    values = _column(dataset, column)
    return any(value != -1 and value is not None for value in values)


def has_label_maps(dataset: Any, column: str) -> bool:
    """True if at least one row has a label map."""
    import datasets

    if column not in dataset.column_names:
        return False
    rows = dataset.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    return any(row[column] is not None for row in rows)


def _holds_files(dataset: Any, column: str) -> bool:
    """True for image files stored as {bytes, path} or bytes, as in parquet that was not written by datasets."""
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
