"""Label maps over their images: (1 - share) · pixel + share · colour[label]; and tables of images with titles.

Colours are those of Pascal VOC: bit 0 of a label is the highest bit of red, bit 1 of green, bit 2 of blue, bit 3 the
next bit of red, and so on, so that consecutive labels look different.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ...core.forward import IGNORE
from ...core.text import plain

GREY = (232, 232, 232)  # for pixels without a label; no class has this colour
_GAP, _TEXT, _SWATCH = 8, 15, 14
_INK, _EDGE = (36, 41, 47), (208, 215, 222)


def colours(n: int) -> np.ndarray:
    """n x 3 uint8: black, dark red, green, olive, …"""
    if not 0 <= n <= 256:
        raise ValueError(f"colours({n}): there are 256, one for each uint8 label")
    labels = np.arange(n)[:, None]
    channels = np.arange(3)[None]
    palette = np.zeros((n, 3), np.int64)
    for bit in range(3):  # of the eight bits of a label, red and green get three, blue two
        palette |= ((labels >> (3 * bit + channels)) & 1) << (7 - bit)
    return palette.astype(np.uint8)


def overlay(image: Image.Image, labels: np.ndarray, share: float = 0.6, background: int | None = 0) -> Image.Image:
    """The image with its classes coloured, except for the class `background`."""
    if labels.shape != (image.height, image.width):
        raise ValueError(f"labels are {labels.shape}, the image is {(image.height, image.width)}; both are H x W")
    if labels.dtype != np.uint8:
        raise ValueError(f"labels are {labels.dtype}; expected uint8, with {IGNORE} for no class")
    if not 0 <= share <= 1:
        raise ValueError(f"`share` is {share}; the opacity of the colours is between 0 and 1")
    palette = colours(256)
    palette[IGNORE] = GREY
    rgb = image.convert("RGB")
    tinted = Image.blend(rgb, Image.fromarray(palette[labels]), share)
    tinted.paste(GREY, mask=Image.fromarray(_edges(labels)))  # keeps a dark class visible on a dark object
    if background is None:
        return tinted
    return Image.composite(tinted, rgb, Image.fromarray(np.where(labels == background, 0, 255).astype(np.uint8)))


def _edges(labels: np.ndarray) -> np.ndarray:
    """255 where a pixel has a neighbour of another class; edges are wider in a large image."""
    edge = np.zeros(labels.shape, bool)
    for away in range(1, 1 + max(1, min(labels.shape) // 240)):
        down, across = labels[away:] != labels[:-away], labels[:, away:] != labels[:, :-away]
        edge[away:] |= down
        edge[:-away] |= down
        edge[:, away:] |= across
        edge[:, :-away] |= across
    return np.where(edge, 255, 0).astype(np.uint8)


def side_by_side(
    rows: Sequence[Sequence[Image.Image]],
    titles: Sequence[str],
    legend: Mapping[str, tuple[int, int, int]] | None = None,
    side: int = 200,
) -> Image.Image:
    """A table of images on white: titles above the columns, a legend of colours below.

    Images of a row have the same height, and none is more than `side` wide or high.
    """
    if not rows or not titles or any(len(row) != len(titles) for row in rows):
        raise ValueError(f"rows of {[len(row) for row in rows]} images, {len(titles)} titles; one for each column")
    font, small = ImageFont.load_default(size=_TEXT), ImageFont.load_default(size=_TEXT - 2)
    names = [plain(title) for title in titles]
    table = [_one_height(row, side) for row in rows]
    # a column is at least as wide as its title, also if its images are 33 pixels wide
    widths = [max(*(row[i].width for row in table), _width(names[i], font)) for i in range(len(names))]
    entries = [(plain(name), colour) for name, colour in (legend or {}).items()]
    across = [_SWATCH + 6 + _width(name, small) + 2 * _GAP for name, _ in entries]
    width = max(sum(widths) + _GAP * (len(widths) + 1), *(wide + _GAP for wide in across), 0)
    lines = _wrapped(across, width - _GAP)
    head, line = _TEXT + 2 * _GAP, _SWATCH + 8
    images = sum(row[0].height + _GAP for row in table)
    page = Image.new("RGB", (width, head + images + (_GAP + line * len(lines) if lines else 0)), "white")
    draw = ImageDraw.Draw(page)

    x = _GAP
    for i, name in enumerate(names):
        draw.text((x + widths[i] // 2, head // 2), name, _INK, font, anchor="mm")
        y = head
        for row in table:
            left = x + (widths[i] - row[i].width) // 2
            # a frame, because a bright sky would have no visible border
            draw.rectangle((left - 1, y - 1, left + row[i].width, y + row[i].height), outline=_EDGE)
            page.paste(row[i], (left, y))
            y += row[i].height + _GAP
        x += widths[i] + _GAP
    for number, indices in enumerate(lines):
        top, x = head + images + line * number + 2, _GAP
        for i in indices:
            name, colour = entries[i]
            draw.rectangle((x, top, x + _SWATCH, top + _SWATCH), tuple(int(c) for c in colour), _INK)
            draw.text((x + _SWATCH + 6, top + _SWATCH // 2 + 1), name, _INK, small, anchor="lm")
            x += across[i]
    return page


def png(image: Image.Image) -> bytes:
    """Bytes of a PNG file without date or metadata, equal for equal images.

    Full colour: a palette of 256 colours would merge those of similar classes.
    """
    file = io.BytesIO()
    Image.fromarray(np.array(image.convert("RGB"))).save(file, "PNG", optimize=True)  # drops EXIF
    return file.getvalue()


def _one_height(row: Sequence[Image.Image], side: int) -> list[Image.Image]:
    """Images scaled to the same height, the largest at which all fit into side x side."""
    if any(not image.width or not image.height for image in row):
        raise ValueError("an image without pixels cannot be shown")
    height = max(1, min([side, *(int(side * image.height / image.width) for image in row)]))
    scaled = []
    for image in row:
        size = (max(1, round(image.width * height / image.height)), height)
        scaled.append(image.convert("RGB").resize(size, Image.Resampling.BICUBIC))
    return scaled


def _wrapped(widths: Sequence[int], room: int) -> list[list[int]]:
    """Indices in lines: as many per line as fit, at least one."""
    lines: list[list[int]] = []
    left = 0
    for i, width in enumerate(widths):
        if not lines or width > left:
            lines.append([])
            left = room
        lines[-1].append(i)
        left -= width
    return lines


def _width(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> int:
    return int(np.ceil(font.getlength(text)))
