"""Pairs: a split of images with label maps. Every label map is read and checked when the split is opened.

A wrong label map would raise no error in training, only teach a wrong class. Measured on 144 pairs of Pascal VOC,
mostly 500 x 375: 0.17 s in one thread, 0.10 s in two, so that all 2,913 take about 2 s.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image
from PIL.ImageFile import ImageFile
from tqdm.auto import tqdm

from ...core.errors import first_line
from ..labelled_split import ReadColumn, evenly_spaced
from ..source import not_rank_zero
from .label_map import Colour, classes_in, read_label_map

UNREADABLE = (OSError, ValueError, AttributeError, SyntaxError, Image.DecompressionBombError)  # raised by Pillow


class OpenFiles:
    """Opens image files."""

    def __init__(self, files: Sequence[str]) -> None:
        self.files = list(files)

    def __len__(self) -> int:
        return len(self.files)

    def open(self, index: int) -> ImageFile:
        return Image.open(self.files[index])

    def name(self, index: int) -> str:
        """The image's name in errors."""
        return self.files[index]


class OpenColumn(ReadColumn):
    """Opens the images of a column of a Hugging Face dataset."""

    def __init__(self, dataset: Any, column: str, split: str) -> None:
        super().__init__(dataset, column)
        self.split = split

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        return f"split {self.split}, row {index}, column {self.column}"


class ReadSome:
    """Opens some of the images of another reader."""

    def __init__(self, images: OpenFiles | OpenColumn | ReadSome, indices: Sequence[int]) -> None:
        self.images, self.indices = images, [int(index) for index in indices]

    def __len__(self) -> int:
        return len(self.indices)

    def open(self, index: int) -> ImageFile:
        return self.images.open(self.indices[index])

    def name(self, index: int) -> str:
        return self.images.name(self.indices[index])


class Pairs:
    """N images and N label maps of the same sizes. EXIF rotation is not applied, because label maps have none."""

    def __init__(
        self, images: OpenFiles | OpenColumn, label_maps: OpenFiles | OpenColumn, colours: Sequence[Colour] = ()
    ) -> None:
        self.images: OpenFiles | OpenColumn | ReadSome = images
        self.label_maps: OpenFiles | OpenColumn | ReadSome = label_maps
        self._colours = tuple(colours)
        checked = self._check_all()
        self.sizes = [size for size, _ in checked]
        self._classes = [classes for _, classes in checked]
        # (width, height) of the first image, which decides the transforms
        self.size: tuple[int, int] = self.sizes[0] if checked else (0, 0)

    def __len__(self) -> int:
        return len(self._classes)

    def image(self, index: int) -> Image.Image:
        """RGB image."""
        with self._open_image(self._in_range(index)) as image:
            return image.convert("RGB")

    def label_map(self, index: int) -> np.ndarray:
        """H x W uint8: the class of each pixel, 255 for none."""
        return self._read_label_map(self._in_range(index))

    def only(self, indices: Sequence[int]) -> Pairs:
        """The pairs of these examples, in this order; label maps are not checked again."""
        found = copy.copy(self)
        found.images, found.label_maps = ReadSome(self.images, indices), ReadSome(self.label_maps, indices)
        found.sizes = [self.sizes[index] for index in indices]
        found._classes = [self._classes[index] for index in indices]
        found.size = found.sizes[0] if found.sizes else (0, 0)
        return found

    def classes_in(self, index: int) -> tuple[int, ...]:
        """The classes that occur in the label map, without 255."""
        return self._classes[self._in_range(index)]

    def check_labels(self, num_classes: int) -> None:
        """Raise for a class that does not exist, naming the first label map that has it."""
        for index, classes in enumerate(self._classes):
            if classes and classes[-1] >= num_classes:
                raise ValueError(
                    f"{self.label_maps.name(index)}: label {classes[-1]}, but there are {num_classes} classes, "
                    f"0 to {num_classes - 1}; 255 is for pixels without a class"
                )

    def highest(self) -> int:
        """The highest label; -1 if there is none."""
        return max((classes[-1] for classes in self._classes if classes), default=-1)

    def digest_parts(self) -> Iterator[bytes]:
        """Bytes that identify the data in a cache: sizes and classes of all pairs, pixels of sixteen."""
        yield json.dumps([self.sizes, self._classes]).encode()
        for index in evenly_spaced(len(self)):
            yield self.image(index).tobytes()
            yield self.label_map(index).tobytes()

    def _in_range(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        return index

    def _check_all(self) -> list[tuple[tuple[int, int], tuple[int, ...]]]:
        """(size, classes) of each pair. Pillow releases the GIL while decoding, so threads help."""
        count = len(self.images)
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            checked = pool.map(self._check_pair, range(count))
            bar = tqdm(
                checked, total=count, desc="label maps", unit="map", delay=1.0, disable=not_rank_zero(), leave=False
            )
            try:
                return list(bar)
            finally:
                pool.shutdown(cancel_futures=True)  # after an error the rest is not needed

    def _check_pair(self, index: int) -> tuple[tuple[int, int], tuple[int, ...]]:
        with self._open_image(index) as image:
            size = image.size  # from the header, without decoding
        labels = self._read_label_map(index)
        height, width = labels.shape
        if (width, height) != size:
            raise ValueError(
                f"{self.label_maps.name(index)}: the label map is {width} x {height}, its image {size[0]} x "
                f"{size[1]}; both must have the same size"
            )
        return size, classes_in(labels)

    @contextmanager
    def _open_image(self, index: int) -> Iterator[ImageFile]:
        try:
            with self.images.open(index) as image:
                yield image
        except UNREADABLE as error:
            raise ValueError(f"{self.images.name(index)}: the image cannot be read: {first_line(error)}") from error

    def _read_label_map(self, index: int) -> np.ndarray:
        name = self.label_maps.name(index)
        try:
            with self.label_maps.open(index) as image:
                return read_label_map(image, self._colours)
        except ValueError as error:
            raise ValueError(f"{name}: {first_line(error)}") from error
        except UNREADABLE as error:
            raise ValueError(f"{name}: the label map cannot be read: {first_line(error)}") from error
