"""From a name to a data set: `digits`, a preset, a folder, a parquet file, what save_to_disk wrote, or a Hub id.

Pictures have labels, or for segmentation masks. Only a Hub id, or a preset without a copy on this disk, uses the
network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from ..core.forward import IGNORE
from .columns import (
    find_test_split,
    has_labels,
    has_masks,
    image_column_of,
    label_column_of,
    mask_column_of,
    number_labels,
    read_labels,
)
from .digits import grey_digits, pixels
from .labelled_split import FromArray, FromColumn, Split
from .load import NOISE, check_source, id_and_title, load, on_disk
from .presets import Preset, TaskName, preset_of
from .segmentation.folders import LAYOUTS, Folders, class_names, mask_folders
from .segmentation.pairs import FromColumns, FromFiles, Pairs

S = TypeVar("S", Split, Pairs)

HAS = {"classification": "one label for each picture", "segmentation": "a mask for each picture"}
NEEDS = {
    "classification": "a model with one answer for a picture needs labels, as cifar10 has them",
    "segmentation": "a model that answers for every pixel needs masks, as voc2012 has them",
}


@dataclass(frozen=True)
class Data(Generic[S]):
    name: str  # what the user asked for
    dataset: str  # for a card: the id on the Hub, or the folder's name
    title: str
    classes: tuple[str, ...]  # "0", "1", … if they have no names
    train: S  # Split, or Pairs for segmentation
    test: S
    test_split: str
    preset: Preset | None


def open_data(
    source: str,
    *,
    config: str | None = None,
    train_split: str | None = None,
    test_split: str | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    need_test: bool = True,
    task: TaskName = "classification",
    num_classes: int | None = None,
) -> Data:
    """Labels read and checked, columns and splits found, no image decoded but the first; masks are all read.

    `config`, `revision` and `token` are for the Hub. `need_test=False` is for who only prunes: `test` is empty then.
    `num_classes` is for masks whose classes have no names; all other data say themselves how many there are.
    """
    check_source(source)
    preset = preset_of(source)
    if source == NOISE:
        known = "voc2012" if task == "segmentation" else "digits"
        raise ValueError(f"data {NOISE!r} is noise, to try pruning out: there is nothing to learn; try {known}")
    if preset and preset.task != task:
        raise ValueError(f"data {source}: {preset.title} has {HAS[preset.task]}; {NEEDS[task]}")
    if preset and preset.name == "digits":
        if image_column or label_column or config or revision:
            raise ValueError("data digits has no columns, configs or revisions to choose from; leave those flags out")
        return _open_digits(preset, train_split or preset.train_split, test_split or preset.test_split)
    asked = Asked(train_split or (preset.train_split if preset else "train"), test_split, image_column, label_column)
    try:
        path = on_disk(source, preset, revision)
        folders = mask_folders(path) if path else {}
        if task == "segmentation":
            parts = folders or _load_or_explain(source, preset, path, config, revision, token, train_split)
            opened = _open_pairs(parts, asked, preset, path, num_classes, need_test)
        else:
            if any(folder.images.is_dir() for folder in folders.values()):
                raise ValueError(f"it has {HAS['segmentation']}; {NEEDS[task]}")
            parts = load(source, preset, path, config, revision, token, train_split)
            opened = _open_labels(parts, asked, preset, need_test)
    except ValueError as error:
        raise ValueError(f"data {source}: {error}") from error
    return Data(source, *id_and_title(source, preset, path), *opened, preset)


class Asked(NamedTuple):
    """Splits and columns by name; None: find it."""

    train: str
    test: str | None
    image: str | None
    label: str | None


class Opened(NamedTuple):
    classes: tuple[str, ...]
    train: Any
    test: Any
    test_split: str


def _open_labels(parts: Mapping[str, Any], asked: Asked, preset: Preset | None, need_test: bool) -> Opened:
    train = parts[_train_split(parts, asked)]
    images = image_column_of(train, asked.image, preset)
    labels = label_column_of(train, asked.label, preset)
    wanted = {asked.train: read_labels(train, labels, asked.train)}
    test_name = ""
    if need_test:
        test_name = find_test_split(
            parts, asked.test, asked.train, lambda name: has_labels(parts[name], labels), preset
        )
        image_column_of(parts[test_name], images, None)
        wanted[test_name] = read_labels(parts[test_name], labels, test_name)
    numbers, classes = number_labels(wanted, preset)
    splits = [Split(numbers[name], FromColumn(parts[name], images)) for name in wanted]
    test = splits[1] if need_test else Split(numbers[asked.train][:0], FromColumn(train, images))
    return Opened(classes, splits[0], test, test_name)


def _open_pairs(
    parts: Mapping[str, Any],
    asked: Asked,
    preset: Preset | None,
    path: Path | None,
    num_classes: int | None,
    need_test: bool,
) -> Opened:
    """Of folders, or of two columns."""
    train = parts[_train_split(parts, asked)]
    if isinstance(train, Folders):
        if asked.image or asked.label:
            raise ValueError("it is folders of files, without columns; leave --image_column and --label_column out")
        images = masks = ""
    else:
        images = image_column_of(train, asked.image, preset)
        masks = mask_column_of(train, asked.label, images, preset)

    def labelled(name: str) -> bool:
        part = parts[name]
        return part.has_masks() if isinstance(part, Folders) else has_masks(part, masks)

    def pairs(name: str) -> Pairs:
        part = parts[name]
        if isinstance(part, Folders):
            found = Pairs(FromFiles(part.pairs()))
        else:
            image_column_of(part, images, None)
            mask_column_of(part, masks, images, None)
            # only this preset's own columns are known to be painted in these colours
            found = Pairs(FromColumns(part, images, masks, name), preset.colours if preset else ())
        if found.highest() < 0:
            why = "no pixel of its masks has a class: all hold 255" if len(found) else "it is empty"
            raise ValueError(f"split {name!r}: {why}")
        return found

    test_name = find_test_split(parts, asked.test, asked.train, labelled, preset) if need_test else ""
    train_pairs = pairs(asked.train)
    test_pairs = pairs(test_name) if need_test else Pairs(FromFiles([]))
    return Opened(
        _classes([train_pairs, test_pairs], class_names(path) if path else None, num_classes, preset),
        train_pairs,
        test_pairs,
        test_name,
    )


def _classes(
    splits: list[Pairs], names: tuple[str, ...] | None, num_classes: int | None, preset: Preset | None
) -> tuple[str, ...]:
    """The preset's; else those of classes.txt; else as many numbers as asked for, or as occur. No label is beyond."""
    if preset and names and len(names) != preset.num_classes:
        raise ValueError(
            f"classes.txt has {len(names)} names, but {preset.title} has {preset.num_classes} classes; "
            "is it another data set?"
        )
    names = preset.classes if preset else names
    if names is None:
        high = max(split.highest() for split in splits)
        if num_classes is None and not high:
            raise ValueError(
                "class 0 is the only one in its masks; if 255 is to be the second, write 1: 255 is for pixels "
                "without a class"
            )
        names = tuple(str(label) for label in range(high + 1 if num_classes is None else num_classes))
    if not 1 <= len(names) <= IGNORE:
        raise ValueError(f"{len(names)} classes; there may be 1 to {IGNORE}, since {IGNORE} in a mask is none")
    for split in splits:
        split.check_labels(len(names))
    return names


def _train_split(parts: Mapping[str, Any], asked: Asked) -> str:
    if asked.train not in parts:
        raise ValueError(
            f"no split {asked.train!r}; it has {', '.join(parts)}: name the one to learn from (--train_split)"
        )
    return asked.train


def _load_or_explain(source: str, preset: Preset | None, path: Path | None, *options: Any) -> Mapping[str, Any]:
    try:
        return load(source, preset, path, *options)
    except ValueError as error:
        raise ValueError(f"{error}; {LAYOUTS}" if path and path.is_dir() else str(error)) from error


def _open_digits(preset: Preset, train_split: str, test_split: str) -> Data:
    parts = dict(zip(("train", "test"), grey_digits()))
    for name in (train_split, test_split):
        if name not in parts:
            raise ValueError(f"data digits: no split {name!r}; it has {', '.join(parts)}")
    train, test = (
        Split(parts[name].labels, FromArray(pixels(parts[name]).numpy())) for name in (train_split, test_split)
    )
    classes = tuple(str(digit) for digit in range(10))
    return Data(preset.name, preset.dataset, preset.title, classes, train, test, test_split, preset)
