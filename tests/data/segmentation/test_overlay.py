"""Colours over a picture, pictures side by side, and the bytes of a PNG."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from hf_px.core.forward import IGNORE
from hf_px.core.text import plain
from hf_px.data.segmentation.overlay import GREY, colours, overlay, png, side_by_side


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def test_the_palette_is_pascal_vocs() -> None:
    known = {0: (0, 0, 0), 1: (128, 0, 0), 2: (0, 128, 0), 3: (128, 128, 0), 4: (0, 0, 128), 7: (128, 128, 128)}
    known |= {8: (64, 0, 0), 9: (192, 0, 0), 15: (192, 128, 128), 20: (0, 64, 128), 255: (224, 224, 192)}
    found = colours(256)
    assert {label: tuple(found[label].tolist()) for label in known} == known
    assert len(np.unique(found, axis=0)) == 256 and found.dtype == np.uint8
    assert np.array_equal(colours(21), found[:21]) and colours(0).shape == (0, 3)
    with pytest.raises(ValueError, match=r"colours\(257\): there are 256"):
        colours(257)


def alike(labels: np.ndarray) -> np.ndarray:
    """Pixels all of whose neighbours are of their class."""
    padded = np.pad(labels, 1, mode="edge")
    around = (padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:])
    return np.logical_and.reduce([each == labels for each in around])


def test_the_background_is_left_bit_for_bit_and_the_rest_is_mixed_within_a_rim() -> None:
    image = noise(28, 20)
    coarse = np.random.default_rng(1).choice(np.array([0, 1, 15, IGNORE], np.uint8), (5, 7))
    labels = coarse.repeat(4, 0).repeat(4, 1)
    inside, there = alike(labels), labels != 0
    assert {0, 1, 15, IGNORE} == set(labels[inside].tolist()) and (~inside).any()
    before, after = np.array(image).astype(float), np.array(overlay(image, labels, share=0.6))
    assert np.array_equal(after[labels == 0], before[labels == 0])
    palette = colours(256).astype(float)
    palette[IGNORE] = GREY
    mixed = 0.4 * before + 0.6 * palette[labels]
    assert np.abs(after - mixed)[there & inside].max() <= 1  # rounding
    assert (after[there & ~inside] == GREY).all()
    everywhere = np.array(overlay(image, labels, background=None))
    assert np.abs(everywhere - mixed)[inside].max() <= 1
    other = np.array(overlay(image, labels, background=15))
    assert np.array_equal(other[labels == 15], before[labels == 15])
    assert np.array_equal(np.array(overlay(image, labels, share=0))[inside], before[inside])
    assert (np.array(overlay(image, labels, share=1))[(labels == 1) & inside] == (128, 0, 0)).all()
    assert np.array_equal(np.array(image), before)  # the argument is not changed
    one = np.full((20, 28), 3, np.uint8)
    assert np.abs(np.array(overlay(image, one)) - (0.4 * before + 0.6 * palette[3])).max() <= 1  # no rim at the edge


def test_overlay_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"labels are \(7, 5\), the image is \(5, 7\)"):
        overlay(noise(7, 5), np.zeros((7, 5), np.uint8))
    with pytest.raises(ValueError, match="labels are int64"):
        overlay(noise(7, 5), np.zeros((5, 7), np.int64))
    with pytest.raises(ValueError, match="`share` is 60"):
        overlay(noise(7, 5), np.zeros((5, 7), np.uint8), share=60)


def test_pictures_of_a_row_are_as_high_as_each_other_and_all_are_there() -> None:
    red, blue = Image.new("RGB", (300, 200), (255, 0, 0)), Image.new("RGB", (100, 200), (0, 0, 255))
    page = np.array(side_by_side([[red, blue], [blue, red]], ["image", "truth"], side=120))
    for colour in ((255, 0, 0), (0, 0, 255)):
        rows, columns = np.nonzero((page == colour).all(2))
        count = len(rows)
        # 300 x 200 into 120 x 120 is 120 x 80, and 100 x 200 is then 40 x 80; each is there twice
        assert count == 2 * 80 * (120 if colour[0] else 40)
        assert rows.min() > 0 and columns.min() > 0 and rows.max() < len(page) - 1 and columns.max() < page.shape[1] - 1
    assert (page[0] == 255).all() and (page[-1] == 255).all() and (page[:, 0] == 255).all()  # nothing is cut off
    assert (page[:, -1] == 255).all()


def test_titles_and_legend_have_room_however_small_the_pictures() -> None:
    tiny = Image.new("RGB", (3, 2), (9, 9, 9))
    legend = {f"class {i}": tuple(int(c) for c in colour) for i, colour in enumerate(colours(30))}
    for names in (legend, {"w" * 200: (1, 2, 3)}, {"\x1b[2Ja\nb": (1, 2, 3)}, {}):
        page = np.array(side_by_side([[tiny, tiny]], ["a long title", "b"], names, side=3))
        edge = np.concatenate([page[0], page[-1], page[:, 0], page[:, -1]])
        assert (edge == 255).all()
        assert max(page.shape) < 900
    with_legend, without = (side_by_side([[tiny]], ["a"], found, side=3) for found in (legend, None))
    assert with_legend.height > without.height + 30 * 14  # a narrow page: one below the other
    pixels = {tuple(pixel) for pixel in np.array(with_legend).reshape(-1, 3).tolist()}
    assert set(legend.values()) <= pixels


def test_side_by_side_refuses_a_ragged_table() -> None:
    tiny = Image.new("RGB", (3, 2))
    for rows, titles in (([[tiny]], ["a", "b"]), ([], ["a"]), ([[tiny], [tiny, tiny]], ["a"]), ([[]], [])):
        with pytest.raises(ValueError, match="one for each column"):
            side_by_side(rows, titles)
    with pytest.raises(ValueError, match="without pixels"):
        side_by_side([[Image.new("RGB", (0, 5))]], ["a"])


def test_png_is_equal_for_equal_pictures_and_says_nothing_else() -> None:
    image = noise(40, 30)
    tagged = image.copy()
    tagged.info |= {"exif": b"Exif\0\0secret", "dpi": (300, 300), "comment": "secret", "icc_profile": b"secret"}
    data = png(image)
    assert data == png(tagged) == png(image.copy())
    assert data != png(noise(40, 30, seed=1))
    back = Image.open(io.BytesIO(data))
    assert back.info == {} and np.array_equal(np.array(back), np.array(image))  # every colour as it was
    kinds = {
        data[i - 4 : i] for i in range(len(data)) if data[i - 4 : i] in (b"tEXt", b"iTXt", b"tIME", b"eXIf", b"pHYs")
    }
    assert not kinds


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("dining table", "dining table"),
        ("\x1b[31mred\x1b[0m\x07", "[31mred[0m"),
        (" a\n\tb\u2028c ", "a b c"),
        ("\u202etxt.exe", "txt.exe"),
        ("x" * 61, "x" * 59 + "…"),
        ("\x00" * 5, ""),
        (7, "7"),
        ("Straße 猫", "Straße 猫"),
    ],
)
def test_a_strangers_word_is_made_plain(text: object, shown: str) -> None:
    assert plain(text) == shown
    assert len(plain("y" * 10**6)) == 60
