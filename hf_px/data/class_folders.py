"""Folders of images, one per class: what is wrong with a folder in which no classes were found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.text import name_list

_SPLITS = ("train", "training", "test", "testing", "validation", "valid", "val", "dev", "eval", "evaluation")
LAYOUT = "a classifier needs one folder per class, for example {0}/train/cat/1.jpg and {0}/train/dog/1.jpg"


def check_class_folders(path: Path, dataset: Any) -> None:
    """Raise if `dataset`, read from the folder `path`, has images but no classes, as datasets finds them."""
    images = [name for name, feature in dataset.features.items() if type(feature).__name__ == "Image"]
    others = [name for name in dataset.column_names if name not in images]
    if len(images) != 1 or not len(dataset) or others not in ([], ["label"]):
        return  # a table, whose label column is looked for by name
    if others and None not in dataset.select_columns(others)[:][others[0]]:
        return
    files = _files(path, dataset, images[0])
    if not files:
        return
    layout = LAYOUT.format(path.name or ".")
    parents = sorted({file.parent.name for file in files})
    if parents == [""]:
        raise ValueError(f"its images ({name_list(files, 2)}) are in no folder of a class; {layout}")
    if "" in parents or len(parents) > 1:
        one_of_each = {len(file.parts): file for file in files}.values()
        raise ValueError(f"its images lie at different depths, for example {name_list(one_of_each, 2)}; {layout}")
    raise ValueError(f"its images are all in one folder, {parents[0]}, so there is one class only; {layout}")


def _files(path: Path, dataset: Any, column: str) -> list[Path]:
    """Paths of the images below the folder of their split; none for images inside a table."""
    import datasets

    rows = dataset.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    root = path.resolve()
    found = [Path(row["path"]) for row in rows[column] if row is not None and row["path"] and row["bytes"] is None]
    below = [file.relative_to(root) for file in found if file.is_relative_to(root)]
    return [
        Path(*file.parts[1:]) if file.parts[0].lower() in _SPLITS and len(file.parts) > 1 else file for file in below
    ]
