"""An index mask: each pixel holds the number of its class, 255 for none. What else a picture may hold is refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL.ImageFile import ImageFile

from ...core.forward import IGNORE

Colour = tuple[int, int, int]

MODES = ("P", "L", "1", "I", "I;16", "I;16B", "I;16L")
# greys of 2 and 4 bits, which Pillow stretches to 0 … 255: class 3 of 15 would come as 51
STRETCHED = {"L;2": 85, "L;4": 17}


def index_mask(image: ImageFile, colours: Sequence[Colour] = ()) -> np.ndarray:
    """H x W, uint8, of a picture as Image.open gives it.

    `colours`: of classes 0, 1, … and at last of no class, for data that are known to be painted.
    """
    if image.mode == "RGB" and colours:
        return _from_colours(np.asarray(image), colours)
    if image.mode not in MODES:
        raise ValueError(
            f"{'an' if image.mode[0] in 'RLFHA' else 'a'} {image.mode} picture, not an index mask: each pixel must "
            "hold the number of its class, 255 for none; save the numbers as a png of mode L or P"
        )
    packed = image.tile[0][3] if image.tile else None  # its mode in the file; gone once the picture is decoded
    image.load()
    mask = np.asarray(image)
    if isinstance(packed, str) and packed in STRETCHED:
        mask = mask // STRETCHED[packed]
    if mask.dtype.itemsize > 1 and mask.size:
        odd = mask.max() if mask.max() > IGNORE else mask.min()
        if not 0 <= odd <= IGNORE:
            raise ValueError(f"a pixel holds {odd}; classes count from 0 to 254, and 255 is for none")
    return mask.astype(np.uint8)


def labels_of(mask: np.ndarray) -> tuple[int, ...]:
    """The classes that occur, in order; 255 is none."""
    return tuple(np.bincount(mask.reshape(-1), minlength=IGNORE + 1)[:IGNORE].nonzero()[0].tolist())


def _from_colours(pixels: np.ndarray, colours: Sequence[Colour]) -> np.ndarray:
    """Exactly these: a colour between two of them was made by who resized or compressed the mask."""
    known = _as_number(np.array(colours))
    order = np.argsort(known)
    found = _as_number(pixels)
    place = order[np.searchsorted(known, found, sorter=order).clip(max=len(known) - 1)]
    strange = known[place] != found
    if strange.any():
        raise ValueError(
            f"colour {tuple(pixels[strange][0].tolist())} is not one of the {len(colours)} that stand for a class; "
            "was the mask resized or compressed?"
        )
    return np.where(place == len(colours) - 1, IGNORE, place).astype(np.uint8)


def _as_number(colours: np.ndarray) -> np.ndarray:
    return colours.astype(np.int64) @ np.array([65536, 256, 1])
