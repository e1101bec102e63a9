"""Images and label maps in folders: <split>/images and <split>/masks, or the layout of Pascal VOC.

An image and its label map have the same stem: images/2007_000549.jpg, masks/2007_000549.png.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
FOLDER_LAYOUTS = (
    "label maps are expected in <split>/masks and images in <split>/images, or in Pascal VOC's folders: JPEGImages, "
    "SegmentationClass and ImageSets/Segmentation/<split>.txt"
)


@dataclass(frozen=True)
class SplitFolders:
    """Folders of one split, and for VOC the file that lists its stems."""

    images: Path
    label_maps: Path
    listed: Path | None = None

    def has_label_maps(self) -> bool:
        """False for a test split whose label maps are not public."""
        files = _by_stem(self.label_maps, (".png",))
        return bool(files) if self.listed is None else any(stem in files for stem in _lines(self.listed))

    def pairs(self) -> tuple[list[str], list[str]]:
        """(images, label maps) in alphabetical order or in that of the list; raises if one of a pair is missing."""
        images, label_maps = _by_stem(self.images, IMAGE_SUFFIXES), _by_stem(self.label_maps, (".png",))
        stems = sorted(images) if self.listed is None else _lines(self.listed)
        if not stems:
            raise ValueError(
                f"{self.listed}: lists no image" if self.listed else f"{self.images}: no jpg, png or webp image"
            )
        for stem in stems:
            if stem not in images:
                raise ValueError(f"{self.images / stem}.jpg: no such image, but {self.listed} lists it")
            if stem not in label_maps:
                raise ValueError(f"{images[stem]}: has no label map; there is no {self.label_maps / stem}.png")
        if self.listed is None and (alone := sorted(set(label_maps) - set(images))):
            raise ValueError(f"{label_maps[alone[0]]}: has no image; there is no {self.images / alone[0]}.jpg")
        return [str(images[stem]) for stem in stems], [str(label_maps[stem]) for stem in stems]


def split_folders(path: Path) -> dict[str, SplitFolders]:
    """{split: its folders}; empty if it has neither layout."""
    for root in (path, path / "VOC2012", path / "VOCdevkit" / "VOC2012"):
        images, label_maps = root / "JPEGImages", root / "SegmentationClass"
        lists = root / "ImageSets" / "Segmentation"
        if label_maps.is_dir() and lists.is_dir():
            return {file.stem: SplitFolders(images, label_maps, file) for file in sorted(lists.glob("*.txt"))}
    parts = sorted(path.iterdir()) if path.is_dir() else []
    return {part.name: SplitFolders(part / "images", part / "masks") for part in parts if (part / "masks").is_dir()}


def read_class_names(path: Path) -> tuple[str, ...] | None:
    """Names in classes.txt, one per line from class 0 on; None if there is no such file."""
    file = path / "classes.txt"
    if not file.is_file():
        return None
    names = tuple(_lines(file))
    if not names:
        raise ValueError(f"{file}: is empty; write one class name per line, or remove the file")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{file}: two classes are called {twice!r}")
    return names


def _by_stem(folder: Path, suffixes: Iterable[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.suffix.lower() in suffixes and not file.name.startswith("."):  # macOS adds ._0.png to 0.png
            if file.stem in found:
                raise ValueError(f"{file}: {found[file.stem].name} has the same stem; remove one of the two")
            found[file.stem] = file
    return found


def _lines(file: Path) -> list[str]:
    return [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
