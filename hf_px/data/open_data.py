"""open_data(name): `digits`, a preset, a folder, a parquet file, the output of save_to_disk, or a Hub id.

Images have labels, or label maps for segmentation. Only a Hub id, or a preset without a local copy, uses the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from ..core.forward import IGNORE
from .class_folders import check_class_folders
from .columns import (
    find_image_column,
    find_label_column,
    find_label_map_column,
    find_test_split,
    has_label_maps,
    has_labels,
    number_labels,
    read_labels,
)
from .digits import grey_digits, pixels
from .labelled_split import ReadArray, ReadColumn, Split
from .presets import Preset, TaskName, preset_of
from .segmentation.folders import FOLDER_LAYOUTS, SplitFolders, read_class_names, split_folders
from .segmentation.pairs import OpenColumn, OpenFiles, Pairs
from .source import NOISE, check_source, id_and_title, load_splits, on_disk
from .split_names import with_slices

S = TypeVar("S", Split, Pairs)
Needs = Literal["yes", "if any", "no"]  # whether a test split is needed

HAS = {"classification": "one label per image", "segmentation": "a label map per image"}
NEEDS = {
    "classification": "a classifier needs labels, for example cifar10",
    "segmentation": "a segmenter needs label maps, for example voc2012",
}


@dataclass(frozen=True)
class Data(Generic[S]):
    name: str  # as the user gave it
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
    test_optional: bool = False,
    need_train: bool = True,
    task: TaskName = "classification",
    num_classes: int | None = None,
) -> Data:
    """Find columns and splits, read and check all labels or label maps; of the images only the first is decoded.

    `config`, `revision` and `token` are for the Hub. `need_test=False` leaves `test` empty, for pruning only, and
    `test_optional` does where there is none. Splits may be slices, `train[80%:]`. With `need_train=False`, to evaluate
    only, `train` is the test split too; a single split serves, whatever its name. `num_classes` is for label maps
    whose classes have no names; other data have their own number.
    """
    check_source(source)
    preset = preset_of(source)
    if source == NOISE:
        known = "voc2012" if task == "segmentation" else "digits"
        raise ValueError(f"data {NOISE!r} is noise, for trying pruning out; to train, use {known}")
    if preset and preset.task != task:
        raise ValueError(f"data {source}: {preset.title} has {HAS[preset.task]}; {NEEDS[task]}")
    if preset and preset.name == "digits":
        hub = {"image_column": image_column, "label_column": label_column, "config": config, "revision": revision}
        return _open_digits(preset, train_split or preset.train_split, test_split or preset.test_split, hub)
    train = train_split or (preset.train_split if preset else "train")
    try:
        path = on_disk(source, preset, revision)
        named = ((train_split if need_train else test_split) or "").partition("[")[0]  # without a slice
        parts = _folders(path, task) or load_splits(
            source, preset, path, config, revision, token, named or None, _layout_hint(path, task)
        )
        parts, train = with_slices(parts, train, test_split, train_split is None)
        given = Selection(train, test_split, image_column, label_column)
        if not need_train:
            given = given._replace(train=_split_to_evaluate(parts, given, preset, task))
        if given.train not in parts:
            has = f"it has {', '.join(parts)}"
            raise ValueError(f"no split {given.train!r}; {has}: set `train_split` to the training split")
        needs: Needs = "no" if not (need_test and need_train) else "if any" if test_optional else "yes"
        if task == "segmentation":
            opened = _open_pairs(parts, given, preset, path, num_classes, needs)
        else:
            if path and path.is_dir() and not label_column:
                check_class_folders(path, parts[given.train])
            opened = _open_labels(parts, given, preset, needs)
        if not need_train:
            opened = opened._replace(test=opened.train, test_split=given.train)
    except ValueError as error:
        raise ValueError(f"data {source}: {error}") from error
    return Data(source, *id_and_title(source, preset, path), *opened, preset)


class Selection(NamedTuple):
    """Splits and columns that the user named; None: find it."""

    train: str
    test: str | None
    image: str | None
    label: str | None


class Opened(NamedTuple):
    classes: tuple[str, ...]
    train: Any
    test: Any
    test_split: str


def _folders(path: Path | None, task: TaskName) -> Mapping[str, Any]:
    """{split: its folders of images and label maps}; empty if they are not stored so."""
    folders = split_folders(path) if path else {}
    if task == "segmentation":
        return folders
    if any(folder.images.is_dir() for folder in folders.values()):
        raise ValueError(f"it has {HAS['segmentation']}; {NEEDS[task]}")
    return {}


def _layout_hint(path: Path | None, task: TaskName) -> str:
    return FOLDER_LAYOUTS if task == "segmentation" and path and path.is_dir() else ""


def _split_to_evaluate(parts: Mapping[str, Any], given: Selection, preset: Preset | None, task: TaskName) -> str:
    """The split given, else the only one, else the test split."""
    if given.test is None and len(parts) == 1:
        return next(iter(parts))

    def labelled(name: str) -> bool:
        part = parts[name]
        if isinstance(part, SplitFolders):
            return part.has_label_maps()
        if task == "classification":
            return has_labels(part, find_label_column(part, given.label, preset))
        images = find_image_column(part, given.image, preset)
        return has_label_maps(part, find_label_map_column(part, given.label, images, preset))

    return find_test_split(parts, given.test, "", labelled, preset)


def _open_labels(parts: Mapping[str, Any], given: Selection, preset: Preset | None, needs: Needs) -> Opened:
    train = parts[given.train]
    images = find_image_column(train, given.image, preset)
    labels = find_label_column(train, given.label, preset)
    wanted = {given.train: read_labels(train, labels, given.train)}
    test_name = ""
    if needs != "no":
        test_name = find_test_split(
            parts, given.test, given.train, lambda name: has_labels(parts[name], labels), preset, needs == "yes"
        )
    if test_name:
        find_image_column(parts[test_name], images, None)
        wanted[test_name] = read_labels(parts[test_name], labels, test_name)
    numbers, classes = number_labels(wanted, preset)
    splits = [Split(numbers[name], ReadColumn(parts[name], images)) for name in wanted]
    test = splits[1] if test_name else Split(numbers[given.train][:0], ReadColumn(train, images))
    return Opened(classes, splits[0], test, test_name)


def _open_pairs(
    parts: Mapping[str, Any],
    given: Selection,
    preset: Preset | None,
    path: Path | None,
    num_classes: int | None,
    needs: Needs,
) -> Opened:
    """From folders, or from two columns."""
    train = parts[given.train]
    if isinstance(train, SplitFolders):
        if given.image or given.label:
            raise ValueError("it is folders of files, without columns; omit `image_column` and `label_column`")
        images = label_maps = ""
    else:
        images = find_image_column(train, given.image, preset)
        label_maps = find_label_map_column(train, given.label, images, preset)

    def labelled(name: str) -> bool:
        part = parts[name]
        return part.has_label_maps() if isinstance(part, SplitFolders) else has_label_maps(part, label_maps)

    def pairs(name: str) -> Pairs:
        part = parts[name]
        if isinstance(part, SplitFolders):
            image_files, label_map_files = part.pairs()
            opened = Pairs(OpenFiles(image_files), OpenFiles(label_map_files))
        else:
            find_image_column(part, images, None)
            find_label_map_column(part, label_maps, images, None)
            # label maps in RGB colours exist only in this preset's own columns
            colours = preset.colours if preset else ()
            opened = Pairs(OpenColumn(part, images, name), OpenColumn(part, label_maps, name), colours)
        if opened.highest() < 0:
            why = "no pixel of its label maps has a class: all hold 255" if len(opened) else "it is empty"
            raise ValueError(f"split {name!r}: {why}")
        return opened

    test_name = ""
    if needs != "no":
        test_name = find_test_split(parts, given.test, given.train, labelled, preset, needs == "yes")
    train_pairs = pairs(given.train)
    test_pairs = pairs(test_name) if test_name else Pairs(OpenFiles([]), OpenFiles([]))
    return Opened(
        _classes([train_pairs, test_pairs], read_class_names(path) if path else None, num_classes, preset),
        train_pairs,
        test_pairs,
        test_name,
    )


def _classes(
    splits: list[Pairs], names: tuple[str, ...] | None, num_classes: int | None, preset: Preset | None
) -> tuple[str, ...]:
    """Class names from the preset, else classes.txt, else `num_classes` numbers, or as many as occur; checks labels."""
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
                "class 0 is the only one in its label maps; if 255 should be the second class, store it as 1: 255 "
                "stands for no class"
            )
        names = tuple(str(label) for label in range(high + 1 if num_classes is None else num_classes))
    if not 1 <= len(names) <= IGNORE:
        raise ValueError(f"{len(names)} classes; there may be 1 to {IGNORE}, because {IGNORE} stands for no class")
    for split in splits:
        split.check_labels(len(names))
    return names


def _open_digits(preset: Preset, train_split: str, test_split: str, hub: Mapping[str, str | None]) -> Data:
    if given := [f"`{name}`" for name, value in hub.items() if value]:
        raise ValueError(f"data digits has no columns, configs or revisions; omit {' and '.join(given)}")
    parts = dict(zip(("train", "test"), grey_digits()))
    for name in (train_split, test_split):
        if name not in parts:
            raise ValueError(f"data digits: no split {name!r}; it has {', '.join(parts)}")
    train, test = (
        Split(parts[name].labels, ReadArray(pixels(parts[name]).numpy())) for name in (train_split, test_split)
    )
    classes = tuple(str(digit) for digit in range(10))
    return Data(preset.name, preset.dataset, preset.title, classes, train, test, test_split, preset)
