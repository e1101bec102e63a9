"""Pairs: a split of pictures with masks. Every mask is read and checked once, when the split is opened.

A wrong mask would not fail by itself: it would teach a wrong class, or none. Measured on 144 pairs of Pascal VOC,
mostly 500 x 375: 0.17 s in one thread, 0.10 s in two, so that all 2,913 take about 2 s.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from PIL import Image
from PIL.ImageFile import ImageFile
from tqdm.auto import tqdm

from ...core.errors import first_line
from ..labelled_split import FromColumn, spread
from ..load import elsewhere
from .index_mask import Colour, index_mask, labels_of

UNREADABLE = (OSError, ValueError, AttributeError, SyntaxError, Image.DecompressionBombError)  # Pillow's, on bad files


class Opens(Protocol):
    """Where pictures and masks come from. It goes to DataLoader workers, so it must be small when pickled."""

    def __len__(self) -> int: ...
    def image(self, index: int) -> ImageFile: ...  # opened, not decoded
    def mask(self, index: int) -> ImageFile: ...
    def name(self, index: int) -> str: ...  # for errors
    def mask_name(self, index: int) -> str: ...


class FromFiles:
    """Two files for each pair."""

    def __init__(self, files: Sequence[tuple[str, str]]) -> None:
        self.files = list(files)

    def __len__(self) -> int:
        return len(self.files)

    def image(self, index: int) -> ImageFile:
        return Image.open(self.files[index][0])

    def mask(self, index: int) -> ImageFile:
        return Image.open(self.files[index][1])

    def name(self, index: int) -> str:
        return self.files[index][0]

    def mask_name(self, index: int) -> str:
        return self.files[index][1]


class FromColumns:
    """Two columns of a data set."""

    def __init__(self, dataset: Any, image_column: str, mask_column: str, split: str) -> None:
        self.images, self.masks = (FromColumn(dataset, column) for column in (image_column, mask_column))
        self.mask_column, self.split = mask_column, split

    def __len__(self) -> int:
        return len(self.images.rows)

    def image(self, index: int) -> ImageFile:
        return self.images.open(index)

    def mask(self, index: int) -> ImageFile:
        return self.masks.open(index)

    def name(self, index: int) -> str:
        return f"split {self.split}, row {index}"

    def mask_name(self, index: int) -> str:
        return f"{self.name(index)}, column {self.mask_column}"


class Pairs:
    """N pictures and N masks of the same sizes. EXIF turns neither: who drew the mask saw the pixels as they lie."""

    def __init__(self, opens: Opens, colours: Sequence[Colour] = ()) -> None:
        self._opens = opens
        self._colours = tuple(colours)
        found = self._check_all()
        self.sizes = [size for size, _ in found]
        self._classes = [classes for _, classes in found]
        # width and height of the first image, to choose a transform by
        self.size: tuple[int, int] = self.sizes[0] if found else (0, 0)

    def __len__(self) -> int:
        return len(self._classes)

    def image(self, index: int) -> Image.Image:
        """As RGB."""
        try:
            with self._opens.image(self._there(index)) as image:
                return image.convert("RGB")
        except UNREADABLE as error:
            raise ValueError(f"{self.name(index)}: the picture cannot be read: {first_line(error)}") from error

    def mask(self, index: int) -> np.ndarray:
        """H x W, uint8: the class of each pixel, 255 for none."""
        return self._read_mask(self._there(index))

    def name(self, index: int) -> str:
        return self._opens.name(index)

    def classes_in(self, index: int) -> tuple[int, ...]:
        """The classes that occur in the mask, without 255."""
        return self._classes[self._there(index)]

    def check_labels(self, num_classes: int) -> None:
        """Refuse a class that is not there, by the first mask that has it."""
        for index, classes in enumerate(self._classes):
            if classes and classes[-1] >= num_classes:
                raise ValueError(
                    f"{self._opens.mask_name(index)}: label {classes[-1]}, but there are {num_classes} classes, "
                    f"0 to {num_classes - 1}; 255 is for pixels without a class"
                )

    def highest(self) -> int:
        """The highest label; -1 if there is none."""
        return max((classes[-1] for classes in self._classes if classes), default=-1)

    def digest_parts(self) -> Iterator[bytes]:
        """What a cache knows the data by: sizes and classes of all pairs, pixels of sixteen."""
        yield json.dumps([self.sizes, self._classes]).encode()
        for index in spread(len(self)):
            yield self.image(index).tobytes()
            yield self.mask(index).tobytes()

    def _there(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        return index

    def _check_all(self) -> list[tuple[tuple[int, int], tuple[int, ...]]]:
        """(size, classes) of each. Pillow decodes without Python's lock, so threads help."""
        count = len(self._opens)
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            found = pool.map(self._check, range(count))
            bar = tqdm(found, total=count, desc="masks", unit="mask", delay=1.0, disable=elsewhere(), leave=False)
            try:
                return list(bar)
            finally:
                pool.shutdown(cancel_futures=True)  # after an error nobody asks for the rest

    def _check(self, index: int) -> tuple[tuple[int, int], tuple[int, ...]]:
        try:
            with self._opens.image(index) as image:
                size = image.size  # in the header: no pixel is decoded
        except UNREADABLE as error:
            raise ValueError(f"{self.name(index)}: the picture cannot be read: {first_line(error)}") from error
        mask = self._read_mask(index)
        height, width = mask.shape
        if (width, height) != size:
            raise ValueError(
                f"{self._opens.mask_name(index)}: the mask is {width} x {height}, its picture {size[0]} x {size[1]}; "
                "each pixel needs its own label"
            )
        return size, labels_of(mask)

    def _read_mask(self, index: int) -> np.ndarray:
        name = self._opens.mask_name(index)
        try:
            with self._opens.mask(index) as image:
                return index_mask(image, self._colours)
        except ValueError as error:
            raise ValueError(f"{name}: {first_line(error)}") from error
        except UNREADABLE as error:
            raise ValueError(f"{name}: the mask cannot be read: {first_line(error)}") from error
