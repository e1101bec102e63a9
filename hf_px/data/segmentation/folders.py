"""Pictures and masks in folders: <split>/images beside <split>/masks, or the tree that Pascal VOC comes in.

A picture and its mask have the same stem: images/2007_000549.jpg, masks/2007_000549.png.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PICTURES = (".jpg", ".jpeg", ".png", ".webp")
LAYOUTS = (
    "masks in a folder lie in <split>/masks, their pictures in <split>/images, or as Pascal VOC has them: JPEGImages, "
    "SegmentationClass and ImageSets/Segmentation/<split>.txt"
)


@dataclass(frozen=True)
class Folders:
    """A split: two folders, and for VOC a list of the stems that belong to it."""

    images: Path
    masks: Path
    listed: Path | None = None

    def has_masks(self) -> bool:
        """Of a test split often only the pictures are public."""
        there = _by_stem(self.masks, (".png",))
        return bool(there) if self.listed is None else any(stem in there for stem in _lines(self.listed))

    def pairs(self) -> list[tuple[str, str]]:
        """(picture, mask) by stem in alphabetical order, or in the list's; nothing is left over on either side."""
        images, masks = _by_stem(self.images, PICTURES), _by_stem(self.masks, (".png",))
        stems = sorted(images) if self.listed is None else _lines(self.listed)
        if not stems:
            raise ValueError(
                f"{self.listed}: names no picture" if self.listed else f"{self.images}: no jpg, png or webp picture"
            )
        for stem in stems:
            if stem not in images:
                raise ValueError(f"{self.images / stem}.jpg: no such picture, but {self.listed} names it")
            if stem not in masks:
                raise ValueError(f"{images[stem]}: a picture without a mask; there is no {self.masks / stem}.png")
        if self.listed is None and (alone := sorted(set(masks) - set(images))):
            raise ValueError(f"{masks[alone[0]]}: a mask without a picture; there is no {self.images / alone[0]}.jpg")
        return [(str(images[stem]), str(masks[stem])) for stem in stems]


def mask_folders(path: Path) -> dict[str, Folders]:
    """{split: its folders}; none if it is neither layout."""
    for root in (path, path / "VOC2012", path / "VOCdevkit" / "VOC2012"):
        images, masks, lists = root / "JPEGImages", root / "SegmentationClass", root / "ImageSets" / "Segmentation"
        if masks.is_dir() and lists.is_dir():
            return {file.stem: Folders(images, masks, file) for file in sorted(lists.glob("*.txt"))}
    inside = sorted(path.iterdir()) if path.is_dir() else []
    return {part.name: Folders(part / "images", part / "masks") for part in inside if (part / "masks").is_dir()}


def class_names(path: Path) -> tuple[str, ...] | None:
    """classes.txt: a name per line, that of class 0 first."""
    file = path / "classes.txt"
    if not file.is_file():
        return None
    names = tuple(_lines(file))
    if not names:
        raise ValueError(f"{file}: no name in it; write one per line, or take the file away")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{file}: two classes are called {twice!r}")
    return names


def _by_stem(folder: Path, suffixes: Iterable[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.suffix.lower() in suffixes and not file.name.startswith("."):  # macOS leaves ._0.png beside 0.png
            if file.stem in found:
                raise ValueError(f"{file}: {found[file.stem].name} has the same stem; which one belongs to the mask?")
            found[file.stem] = file
    return found


def _lines(file: Path) -> list[str]:
    return [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
