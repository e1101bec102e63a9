"""The card's picture of a classifier: which images, what is said of them, any name and any image drawn."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageChops, ImageDraw, ImageFont
from torch import nn

from hf_px.data import Data, Split, open_data
from hf_px.data.labelled_split import ReadArray
from hf_px.tickets.card import read_predictions, read_words
from hf_px.tickets.classified_picture import (
    Classified,
    _mark,
    chosen,
    classified,
    classified_picture,
    draw_classified,
    drawable_names,
    fit_text,
    in_words,
    seen_image,
    shown_names,
)

IMAGES = {"input_size": (3, 8, 8), "mean": (0.3, 0.4, 0.5), "std": (0.2, 0.3, 0.4), "crop_pct": 1.0}
WILD = [
    "猫",
    "قطة",
    "Кошка",
    "\ud800",
    "a\u202eb",
    "\0",
    "",
    "é" * 300,
    "🐈‍⬛",
    "x" * 10_000,
    "<b>|*",
    "straße",
    "strasse",
]


class Linear(nn.Module):
    """Logits of ten classes, linear in the pixels."""

    def __init__(self, seed: int, classes: int = 10, side: int = 8) -> None:
        super().__init__()
        self.fc = nn.Linear(3 * side**2, classes)
        generator = torch.Generator().manual_seed(seed)
        self.fc.weight.data.normal_(generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x.flatten(1))


def noise(count: int, side: int, classes: tuple[str, ...]) -> Data[Split]:
    """Images that no compression makes smaller."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)
    split = Split(torch.arange(count) % len(classes), ReadArray(pixels))
    return Data("noise", "noise", "noise", classes, split, split, "test", None)


@pytest.mark.parametrize(("classes", "each", "count"), [(10, 36, 8), (2, 9, 8), (3, 1, 8), (100, 5, 8), (5, 7, 64)])
def test_images_are_spread_over_classes_and_none_is_there_twice(classes: int, each: int, count: int) -> None:
    labels = torch.randperm(classes * each, generator=torch.Generator().manual_seed(1)) % classes
    found = chosen(labels, count)
    assert len(set(found)) == len(found) == min(count, classes * each)
    seen = Counter(labels[found].tolist())
    assert len(seen) == min(classes, len(found)) and max(seen.values()) - min(seen.values()) <= 1


def test_predictions_are_those_of_the_test() -> None:
    data = open_data("digits")
    models = {"dense": Linear(0), "ticket": Linear(1)}
    found = classified(data, IMAGES, models, 8)
    for one, index in zip(found, chosen(data.test.labels, 8)):
        pixels = np.asarray(data.test.image(index), np.float64).transpose(2, 0, 1) / 255
        x = (pixels - np.reshape(IMAGES["mean"], (3, 1, 1))) / np.reshape(IMAGES["std"], (3, 1, 1))
        assert one.label == int(data.test.labels[index]) and list(one.found) == ["dense", "ticket"]
        for name, model in models.items():
            logits = model.fc.weight.detach().double().numpy() @ x.reshape(-1) + model.fc.bias.detach().numpy()
            shares = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            label, share = one.found[name]
            assert label == shares.argmax() and share == pytest.approx(shares.max(), abs=1e-5)
        assert np.array_equal(np.asarray(one.image), np.asarray(data.test.image(index)))  # as the model sees it


def test_an_image_of_one_channel_is_grey() -> None:
    pixels = torch.arange(64).view(1, 8, 8).float() * 4
    images = {"input_size": (1, 8, 8), "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
    found = np.asarray(seen_image((pixels / 255 - 0.5) / 0.25, images))
    assert np.array_equal(found, np.repeat(pixels.byte().numpy()[0, :, :, None], 3, axis=2))


def test_right_and_wrong_differ_in_shape_not_only_in_colour() -> None:
    shapes = []
    for right in (True, False):
        page = Image.new("RGB", (20, 20), "white")
        _mark(ImageDraw.Draw(page), 4, 10, right)
        shapes.append(page.convert("L").point(lambda v: 255 * (v < 200)))
    assert all(np.count_nonzero(shape) > 15 for shape in shapes)
    different = np.asarray(ImageChops.difference(*shapes)) > 0
    assert different.sum() > 0.5 * max(np.count_nonzero(shape) for shape in shapes)


def test_any_name_is_drawn_in_its_room_and_no_two_look_alike() -> None:
    font = ImageFont.load_default(size=14)
    names = drawable_names(WILD)
    assert all(name.isascii() and name.strip() for name in names) and len(set(names)) == len(names)
    assert names[0] == "class 0" and drawable_names(["Łódź niño"]) == ("Lodz nino",)
    image = Image.new("RGB", (8, 8))
    long = [*WILD, *(f"the same long beginning of every name {i} and the same end" for i in range(3))]
    examples = [Classified(image, i, {"ticket": (i, 0.5)}) for i in range(len(long))]
    shown = shown_names(examples, long, font)
    assert len(set(shown.values())) == len(long)
    assert all(font.getlength(name) <= 175 for name in shown.values())
    draw_classified(examples, long, 64)


def test_a_long_name_keeps_its_start_and_its_end() -> None:
    font = ImageFont.load_default(size=14)
    name = "Norwegian elkhound with a very long explanation, second kind"
    found = fit_text(name, 170, font)
    start, end = found.split("...")
    assert len(start) > 5 < len(end) and name.startswith(start) and name.endswith(end)
    assert fit_text("cat", 170, font) == "cat" and font.getlength(fit_text(name, 0, font)) < 20


@pytest.mark.parametrize("side", [8, 33, 224])
def test_the_file_is_small_and_equal_for_equal_images(side: int) -> None:
    data = noise(9, side, tuple(map(str, range(9))))
    images, models = IMAGES | {"input_size": (3, side, side)}, {"ticket": Linear(0, 9, side)}
    file = classified_picture(data, images, models, 8)
    assert len(file) < 200_000 and file == classified_picture(data, images, models, 8)
    page = Image.open(io.BytesIO(file))
    assert page.width <= 1000 and page.height <= 700
    if side == 8:  # enlarged by a whole factor, every pixel is still there
        sixteen = np.asarray(page.convert("RGB"))
        top, left = 10, 10
        shown = sixteen[top : top + 128 : 16, left : left + 128 : 16]
        want = np.asarray(data.test.image(chosen(data.test.labels, 8)[0]))
        assert np.array_equal(shown, want) or np.abs(shown.astype(int) - want).max() < 80  # a palette may be coarse


def test_a_dark_page_sees_the_same_picture() -> None:
    page = Image.open(io.BytesIO(classified_picture(noise(4, 8, ("a", "b")), IMAGES, {"ticket": Linear(0, 2)}, 4)))
    assert "transparency" not in page.info and page.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


def test_the_words_are_in_the_file_and_say_what_is_drawn(tmp_path: Path) -> None:
    names = ("猫", "a|b <i>", "c")
    found = {"dense": (0, 0.93), "ticket": (1, 0.999)}
    lines = in_words([Classified(Image.new("RGB", (8, 8)), 0, found)], names)
    assert lines[0].endswith("the dense model is right on 1, this ticket is right on 0")
    assert lines[1] == "truth 猫; dense 猫 (93%), right; ticket a|b <i> (99%), wrong"  # 100% would be certain
    path = tmp_path / "predictions.png"
    path.write_bytes(classified_picture(noise(4, 8, names), IMAGES, {"ticket": Linear(0, 3)}, 4))
    assert len(read_words(path)) == 5 and "猫" in " ".join(read_words(path))
    assert "<i>" not in " ".join(read_predictions(path) or []) and "猫" in " ".join(read_predictions(path) or [])


def test_a_file_that_is_no_picture_has_no_words(tmp_path: Path) -> None:
    path = tmp_path / "predictions.png"
    assert read_predictions(path) is None
    for data in (b"", b"\x89PNG\r\n\x1a\n", b"secret"):
        path.write_bytes(data)
        assert read_predictions(path) == []
