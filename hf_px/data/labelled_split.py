"""A split of labelled images: labels in memory, images decoded on access, small ones only once.

Measured on CIFAR-10, CPU time, best of 15: 32x32 pixels take 72 µs to decode from PNG, 118 from WebP, 11 if they are
kept as bytes; crop, flip and normalise take 90, and in batches of 128 both take 25.
"""

from __future__ import annotations

import io
import mmap
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from PIL import Image
from PIL.ImageFile import ImageFile
from torch import Tensor

from ..core.errors import first_line

KEEP = 256 * 2**20  # bytes of decoded images: CIFAR's 50,000 are 146 MiB


class Split:
    """N labels and N images. `read(i)` decodes one; it is sent to DataLoader workers, so it must pickle small."""

    def __init__(self, labels: Tensor, read: Callable[[int], Image.Image]) -> None:
        self.labels = labels
        self._read = read
        self.size: tuple[int, int] = (0, 0)  # (width, height) of the first image, which decides the transforms
        if len(labels):
            self.size = self._decode(0).size
        self._allocate()

    def __len__(self) -> int:
        return len(self.labels)

    def image(self, index: int) -> Image.Image:
        """The image in RGB; a split that keeps its images decodes each once."""
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        if self._kept is None:
            return self._decode(index)
        if self._there[index]:
            return Image.fromarray(self._kept[index])
        image = self._decode(index)
        if image.size == self.size:  # others are decoded each time
            self._kept[index] = np.asarray(image)
            self._there[index] = True  # after the pixels, because other workers read both
        return image

    def pixels(self, indices: np.ndarray, resized: Callable[[Image.Image], np.ndarray]) -> np.ndarray:
        """N x H x W x 3 uint8, for a split that keeps its images; `resized` handles images of another size."""
        if len(outside := indices[(indices < 0) | (indices >= len(self))]):
            raise IndexError(f"image {outside[0]} of {len(self)}")
        assert self._kept is not None
        for index in indices[~self._there[indices]]:
            self.image(int(index))
        found = self._kept[indices]
        for place in np.flatnonzero(~self._there[indices]):
            found[place] = resized(self.image(int(indices[place])))
        return found

    @property
    def keeps(self) -> bool:
        """True if all images fit into KEEP bytes."""
        return self._kept is not None

    def only(self, indices: Tensor) -> Split:
        """The split of these examples, in this order."""
        return Split(self.labels[indices], partial(_read_at, self._read, indices))

    def digest_parts(self) -> Iterator[bytes]:
        """Bytes that identify the data in a cache: all labels and sixteen images."""
        yield self.labels.numpy().tobytes()
        for index in evenly_spaced(len(self)):
            yield self.image(index).tobytes()

    def _decode(self, index: int) -> Image.Image:
        try:
            return self._read(index).convert("RGB")
        except (OSError, ValueError, AttributeError, Image.DecompressionBombError) as error:
            raise ValueError(f"image {index} cannot be read: {first_line(error)}") from error

    def _allocate(self) -> None:
        """Memory shared with forked workers: an image that one worker decoded is there for all, in later epochs too.

        Anonymous, not in /dev/shm, which has 64 MB in a container. Pages cost nothing before they are written.
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
        self._allocate()  # a process that was not forked has its own memory


def evenly_spaced(count: int) -> range:
    """At most sixteen indices below `count`, at equal distances."""
    return range(0, count, max(1, -(-count // 16)))


def _read_at(read: Callable[[int], Image.Image], indices: Tensor, index: int) -> Image.Image:
    return read(int(indices[index]))


class ReadArray:
    """Reads grey or RGB images from an array in memory."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels  # N x H x W [x 3], uint8

    def __call__(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[index])


class ReadColumn:
    """Reads the image column of a Hugging Face dataset. Pickles as the names of memory-mapped files."""

    def __init__(self, dataset: Any, column: str) -> None:
        import datasets

        self.column = column
        # reading encoded rows is 16 times as fast as decoded ones; the other columns are never decoded
        self.rows = dataset.select_columns([column]).cast_column(column, datasets.Image(decode=False))
        self.feature = datasets.Image()

    def __call__(self, index: int) -> Image.Image:
        row = self._row(index)
        try:
            return self.feature.decode_example(row)
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            if not row.get("path"):
                raise
            raise ValueError(f"{row['path']}: {first_line(error)}; replace the file, or remove it") from error

    def open(self, index: int) -> ImageFile:
        """Open an image without decoding it and, unlike datasets, without applying its EXIF rotation."""
        row = self._row(index)
        return Image.open(row["path"] if row["bytes"] is None else io.BytesIO(row["bytes"]))

    def _row(self, index: int) -> dict[str, Any]:
        row = self.rows[index][self.column]
        if row is None:
            raise ValueError("the row is empty")
        return row
