"""What a card says of a data set: its id on the Hub and the names of its classes; reads no image and no label."""

from __future__ import annotations

from .columns import find_label_column
from .presets import preset_of
from .segmentation.folders import read_class_names, split_folders
from .source import NOISE, id_and_title, load_splits, on_disk


def describe_data(source: str, split: str = "train", label_column: str | None = None) -> tuple[str, tuple[str, ...]]:
    """(id on the Hub, or the folder's name; class names, empty if it has none). `source` as for open_data."""
    preset = preset_of(source)
    if source == NOISE:
        return NOISE, ()
    if preset and (preset.classes or preset.name == "digits"):
        return preset.dataset, preset.classes
    path = on_disk(source, preset, None)
    dataset, _ = id_and_title(source, preset, path)
    if path and split_folders(path):
        return dataset, read_class_names(path) or ()
    rows = load_splits(source, preset, path, None, None, None, split, "").get(split)
    if rows is None:
        return dataset, ()
    try:
        feature = rows.features[find_label_column(rows, label_column, preset)]
    except ValueError:  # bare images
        return dataset, ()
    return dataset, tuple(getattr(feature, "names", None) or ())
