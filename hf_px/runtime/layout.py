"""Layout: planes of pixels with a zero border, flat in memory, so that a shift of a plane is an offset.

    plane c, pixel (i, j)  ->  start + c · pitch + i · row + j

A row has `gap` zeros behind its pixels, which are also the zeros in front of the next row; above the first row, and so
below the last row of the plane before, lie `above` rows of zeros. Tokens are a plane of one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .kernel_text import LANES, MOST_VECTORS

END = LANES * MOST_VECTORS + 64  # floats behind a buffer, which the last tile may read


@dataclass(frozen=True)
class Layout:
    height: int
    width: int
    above: int = 0
    gap: int = 0

    @property
    def row(self) -> int:
        return self.width + self.gap

    @property
    def start(self) -> int:
        """Position of the first pixel of the first plane."""
        return self.above * self.row + self.gap

    @property
    def positions(self) -> int:
        """From the first pixel to the end of the last row."""
        return self.height * self.row

    @property
    def vectors(self) -> int:
        return -(-self.positions // LANES)

    @property
    def most_vectors(self) -> int:
        """What the tiles of a plane may cover together."""
        return self.vectors + self.vectors // 12

    @property
    def pitch(self) -> int:
        # the tiles of a plane may end in the border of the next one, which they fill with zeros, but not behind it
        floats = max(self.start + self.positions, LANES * self.most_vectors)
        return -(-floats // LANES) * LANES

    def size(self, channels: int) -> int:
        """Floats of a buffer."""
        return -(-(channels * self.pitch + self.start + END) // LANES) * LANES

    def tile_sizes(self) -> list[int]:
        """Vectors in a tile, for tilings that waste little; the kernel is timed with each."""
        fits = [j for j in range(1, MOST_VECTORS + 1) if -(-self.vectors // j) * j <= self.most_vectors]
        good = [j for j in fits if j >= 3] or fits
        return sorted(good, key=lambda j: (-(-self.vectors // j) * j, abs(j - 6)))[:4]

    @cached_property
    def mask(self) -> np.ndarray:
        """int32: -1 at pixels, 0 in the border; as long as all tiles."""
        found = np.zeros(LANES * (self.most_vectors + MOST_VECTORS), np.int32)
        found[: self.positions] = np.where(np.arange(self.positions) % self.row < self.width, -1, 0)
        return found
