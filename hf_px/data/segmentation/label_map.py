"""Label maps: each pixel holds the number of its class, 255 for none. Any other image is refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL.ImageFile import ImageFile

from ...core.forward import IGNORE

Colour = tuple[int, int, int]

MODES = ("P", "L", "1", "I", "I;16", "I;16B", "I;16L")
# Pillow scales grey levels of 2 and 4 bits to 0 … 255: class 3 of 15 would become 51
STRETCHED = {"L;2": 85, "L;4": 17}


def read_label_map(image: ImageFile, colours: Sequence[Colour]) -> np.ndarray:
    """H x W uint8 from an image that was opened but not decoded.

    `colours` are those of classes 0, 1, … and last of pixels without a class, for label maps stored as RGB.
    """
    if image.mode == "RGB" and colours:
        return _from_colours(np.asarray(image), colours)
    if image.mode not in MODES:
        raise ValueError(
            f"{'an' if image.mode[0] in 'RLFHA' else 'a'} {image.mode} image, not a label map: each pixel must hold "
            "the number of its class, 255 for none; save the numbers as a png of mode L or P"
        )
    packed = image.tile[0][3] if image.tile else None  # its mode in the file, known only before decoding
    image.load()
    labels = np.asarray(image)
    if isinstance(packed, str) and packed in STRETCHED:
        labels = labels // STRETCHED[packed]
    if labels.dtype.itemsize > 1 and labels.size:
        odd = labels.max() if labels.max() > IGNORE else labels.min()
        if not 0 <= odd <= IGNORE:
            raise ValueError(f"a pixel holds {odd}; classes are 0 to 254, and 255 stands for none")
    return labels.astype(np.uint8)


def classes_in(labels: np.ndarray) -> tuple[int, ...]:
    """The classes that occur, in order, without 255."""
    return tuple(np.bincount(labels.reshape(-1), minlength=IGNORE + 1)[:IGNORE].nonzero()[0].tolist())


def _from_colours(pixels: np.ndarray, colours: Sequence[Colour]) -> np.ndarray:
    """Exact colours only: a blend of two comes from resizing or compression."""
    known = _as_number(np.array(colours))
    order = np.argsort(known)
    found = _as_number(pixels)
    place = order[np.searchsorted(known, found, sorter=order).clip(max=len(known) - 1)]
    unknown = known[place] != found
    if unknown.any():
        raise ValueError(
            f"colour {tuple(pixels[unknown][0].tolist())} is not one of the {len(colours)} class colours; "
            "was the label map resized or compressed?"
        )
    return np.where(place == len(colours) - 1, IGNORE, place).astype(np.uint8)


def _as_number(colours: np.ndarray) -> np.ndarray:
    return colours.astype(np.int64) @ np.array([65536, 256, 1])
