"""A split: labels in memory, images decoded when asked for, small ones only once.

Measured on CIFAR-10, CPU time, best of 15: 32x32 pixels take 72 µs to decode from PNG, 118 from WebP, 11 if they are
kept as bytes; crop, flip and normalise take 90, and in batches of 128 both take 25.
"""

from __future__ import annotations

import io
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import Image
from PIL.ImageFile import ImageFile
from torch import Tensor

from ..core.errors import first_line

KEEP = 256 * 2**20  # bytes of decoded images: CIFAR's 50,000 are 146 MiB


class Split:
    """N labels and N images. `read(i)` decodes one; it goes to DataLoader workers, so it must be small when pickled."""

    def __init__(self, labels: Tensor, read: Callable[[int], Image.Image]) -> None:
        self.labels = labels
        self._read = read
        self.size: tuple[int, int] = (0, 0)  # width and height of the first image, to choose a transform by
        if len(labels):
            self.size = self._decode(0).size
        self._make_room()

    def __len__(self) -> int:
        return len(self.labels)

    def image(self, index: int) -> Image.Image:
        """As RGB."""
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        if self._kept is None:
            return self._decode(index)
        if self._there[index]:
            return Image.fromarray(self._kept[index])
        image = self._decode(index)
        if image.size == self.size:  # else there is no room for it: it is decoded each time
            self._kept[index] = np.asarray(image)
            self._there[index] = True  # after the pixels: a worker that sees it sees them
        return image

    def pixels(self, indices: np.ndarray, fit: Callable[[Image.Image], np.ndarray]) -> np.ndarray:
        """N x H x W x 3, uint8, of images that are kept; `fit` makes one that has not the size of the first have it."""
        if len(outside := indices[(indices < 0) | (indices >= len(self))]):
            raise IndexError(f"image {outside[0]} of {len(self)}")
        assert self._kept is not None
        for index in indices[~self._there[indices]]:
            self.image(int(index))
        found = self._kept[indices]
        for place in np.flatnonzero(~self._there[indices]):
            found[place] = fit(self.image(int(indices[place])))
        return found

    @property
    def keeps(self) -> bool:
        """Whether there is room for all of its images."""
        return self._kept is not None

    def only(self, indices: Tensor) -> Split:
        """Those examples, in that order."""
        return Split(self.labels[indices], FromSome(self._read, indices))

    def digest_parts(self) -> Iterator[bytes]:
        """What a cache knows the data by: all labels and sixteen images."""
        yield self.labels.numpy().tobytes()
        for index in spread(len(self)):
            yield self.image(index).tobytes()

    def _decode(self, index: int) -> Image.Image:
        try:
            return self._read(index).convert("RGB")
        except (OSError, ValueError, AttributeError, Image.DecompressionBombError) as error:
            raise ValueError(f"image {index} cannot be read: {first_line(error)}") from error

    def _make_room(self) -> None:
        """Memory that forked workers share with this process: what one has decoded, all have, in the next epoch too.

        Anonymous, not in /dev/shm: a container has 64 MB there. Pages cost nothing before they are written.
        """
        width, height = self.size
        total = len(self) * width * height * 3
        self._kept: np.ndarray | None = None
        if 0 < total <= KEEP:
            self._kept = np.frombuffer(mmap.mmap(-1, total), np.uint8).reshape(len(self), height, width, 3)
            self._there = np.frombuffer(mmap.mmap(-1, len(self)), np.bool_)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_kept", "_there")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._make_room()  # a process that was not forked keeps its own


def spread(count: int, most: int = 16) -> range:
    """At most so many of `count`, at equal distances."""
    return range(0, count, max(1, -(-count // most)))


class FromSome:
    """Some of the images that another one reads."""

    def __init__(self, read: Callable[[int], Image.Image], indices: Tensor) -> None:
        self.read, self.indices = read, indices

    def __call__(self, index: int) -> Image.Image:
        return self.read(int(self.indices[index]))


class FromArray:
    """Grey or RGB images that are in memory already."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels  # N x H x W [x 3], uint8

    def __call__(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[index])


class FromColumn:
    """An image column of a data set, still encoded. Pickles as the names of memory-mapped files."""

    def __init__(self, dataset: Any, column: str) -> None:
        import datasets

        self.column = column
        # encoded rows come 16 times as fast as decoded ones, and nobody decodes the other columns
        self.rows = dataset.select_columns([column]).cast_column(column, datasets.Image(decode=False))
        self.feature = datasets.Image()

    def __call__(self, index: int) -> Image.Image:
        return self.feature.decode_example(self._row(index))

    def open(self, index: int) -> ImageFile:
        """Not decoded yet, and not turned as EXIF says, which datasets does."""
        row = self._row(index)
        return Image.open(row["path"] if row["bytes"] is None else io.BytesIO(row["bytes"]))

    def _row(self, index: int) -> dict[str, Any]:
        row = self.rows[index][self.column]
        if row is None:
            raise ValueError("there is none")
        return row
