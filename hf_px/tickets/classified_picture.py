"""A picture of a few test images with argmax_c f(x)[c] and its probability, of one or more models; and its words.

The words travel inside the PNG, under the key that PNG defines for them, so that the card finds both in one file.
"""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, PngImagePlugin
from torch import Tensor, nn

from ..core.text import plain
from ..data import Data, Split
from ..data.datasets import TestImages
from .card import DESCRIPTION
from .predict import finite_logits, unique_names

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
_BYTES_EACH = 22_000  # of the PNG for one image: eight of them stay below 200 KB
_SIDES = ((128, 0), *((side, 256) for side in (128, 112, 96, 80, 64, 48)))  # pixels, colours of a palette
_GAP, _TEXT, _LINE = 10, 14, 22  # pixels
_BEFORE, _NAME, _AFTER = 80, 170, 48  # pixels: number, model and mark; the longest name; the probability
_INK, _SOFT, _EDGE, _RIGHT, _WRONG = (36, 41, 47), (87, 96, 106), (208, 215, 222), (17, 99, 41), (164, 14, 38)
_LETTERS = str.maketrans({"ß": "ss", "ł": "l", "Ł": "L", "ø": "o", "Ø": "O", "æ": "ae", "đ": "d", "’": "'", "–": "-"})
_LONGEST_NAME = 150


@dataclass(frozen=True)
class Classified:
    """One image as the model sees it, its label, and {model: (class, probability)}."""

    image: Image.Image
    label: int
    found: Mapping[str, tuple[int, float]]


def classified_picture(
    data: Data[Split], images: Mapping[str, Any], models: Mapping[str, nn.Module], count: int
) -> bytes:
    """PNG of `count` test images with their classes and the predictions of each model, described in words."""
    examples = classified(data, images, models, count)
    names = unique_names(data.classes, _LONGEST_NAME)
    text = PngImagePlugin.PngInfo()
    text.add_itxt(DESCRIPTION, "\n".join(in_words(examples, names)))
    for side, colours in _SIDES:  # photographs hardly compress: fewer colours, then smaller images
        file, page = io.BytesIO(), draw_classified(examples, names, side)
        page = page.quantize(colours) if colours else page
        page.save(file, "PNG", optimize=True, pnginfo=text)
        if file.tell() <= _BYTES_EACH * max(8, len(examples)):
            break
    return file.getvalue()


def chosen(labels: Tensor, count: int) -> list[int]:
    """Indices at equal distances in the test set sorted by class: many classes, and no regard to the predictions."""
    order, count = labels.argsort(stable=True), min(count, len(labels))
    return [int(order[(2 * i + 1) * len(labels) // (2 * count)]) for i in range(count)]


def classified(
    data: Data[Split], images: Mapping[str, Any], models: Mapping[str, nn.Module], count: int
) -> list[Classified]:
    """The chosen images, transformed as in the test, with the most likely class of each model."""
    tests = TestImages(data, images)
    inputs, labels = zip(*(tests[index] for index in chosen(data.test.labels, count)))
    best = {name: finite_logits(model, torch.stack(inputs)).softmax(1).max(1) for name, model in models.items()}
    return [
        Classified(seen_image(x, images), label, {n: (int(b.indices[i]), float(b.values[i])) for n, b in best.items()})
        for i, (x, label) in enumerate(zip(inputs, labels))
    ]


def seen_image(x: Tensor, images: Mapping[str, Any]) -> Image.Image:
    """x · std + mean as an RGB image: what the model sees, after its crop and resize."""
    mean, std = (torch.tensor([float(v) for v in images[key]]) for key in ("mean", "std"))
    if len(mean) != len(x):  # one grey channel, but the settings of three
        mean, std = mean.mean()[None], std.mean()[None]
    pixels = (x * std.view(-1, 1, 1) + mean.view(-1, 1, 1)).clamp(0, 1).mul(255).round().byte()
    return Image.fromarray(pixels.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())


def in_words(examples: Sequence[Classified], names: Sequence[str]) -> list[str]:
    """One line about all images, then one line for each."""
    models = list(examples[0].found)
    right = {model: sum(one.found[model][0] == one.label for one in examples) for model in models}
    title = {"dense": "the dense model", "ticket": "this ticket"}
    counts = ", ".join(f"{title.get(model, model)} is right on {count}" for model, count in right.items())
    lines = [f"{len(examples)} test images with their classes and predictions; {counts}"]
    for one in examples:
        found = "; ".join(
            f"{model} {names[label]} ({_percent(share)}), {'right' if label == one.label else 'wrong'}"
            for model, (label, share) in one.found.items()
        )
        lines.append(f"truth {names[one.label]}; {found}")
    return lines


def draw_classified(examples: Sequence[Classified], names: Sequence[str], side: int) -> Image.Image:
    """Images in two columns on white, to be read on a dark page too; beside each its class and the predictions."""
    fonts = ImageFont.load_default(size=_TEXT), ImageFont.load_default(size=_TEXT - 2)
    shown = shown_names(examples, names, fonts[0])
    words = _BEFORE + max(int(fonts[0].getlength(name)) for name in shown.values()) + _AFTER
    columns = min(2, len(examples))
    cell = max(side, _LINE * (1 + len(examples[0].found)) + 4) + _GAP
    width = _GAP + columns * (side + words + 2 * _GAP)
    page = Image.new("RGB", (width, _GAP + cell * -(-len(examples) // columns)), "white")
    draw = ImageDraw.Draw(page)
    for i, one in enumerate(examples):
        left, top = _GAP + i % columns * (side + words + 2 * _GAP), _GAP + i // columns * cell
        image = _fitted(one.image, side)
        x, y = left + (side - image.width) // 2, top + (cell - _GAP - image.height) // 2
        draw.rectangle((x - 1, y - 1, x + image.width, y + image.height), outline=_EDGE)
        page.paste(image, (x, y))
        lines: list[tuple[str, int, float | None]] = [("truth", one.label, None)]
        lines += [(model, label, share) for model, (label, share) in one.found.items()]
        start = top + (cell - _GAP - _LINE * len(lines)) // 2
        for n, (title, label, share) in enumerate(lines):
            at, middle = left + side + _GAP, start + _LINE * n + _LINE // 2
            draw.text((at, middle), str(i + 1) if n == 0 else "", _SOFT, fonts[1], anchor="lm")
            draw.text((at + 18, middle), plain(title, 8), _SOFT, fonts[1], anchor="lm")
            if share is not None:
                _mark(draw, at + 60, middle, label == one.label)
                draw.text((at + words, middle), _percent(share), _INK, fonts[0], anchor="rm")
            draw.text((at + _BEFORE, middle), shown[label], _INK, fonts[0], anchor="lm")
    return page


def shown_names(examples: Sequence[Classified], names: Sequence[str], font: Font) -> dict[int, str]:
    """{class: name as it is drawn} of the classes in the picture, no two alike."""
    drawn = drawable_names(names)
    labels = {label for one in examples for label in (one.label, *(label for label, _ in one.found.values()))}
    short = {label: fit_text(drawn[label], _NAME, font) for label in sorted(labels)}
    seen = list(short.values())
    alike = {label for label, name in short.items() if seen.count(name) > 1}
    return short | {label: f"{fit_text(drawn[label], _NAME - 60, font)} ({label})" for label in alike}


def drawable_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names in the letters of PIL's font: accents dropped, "class 3" where that leaves other letters than ASCII."""
    folded = []
    for i, name in enumerate(names):
        parts = unicodedata.normalize("NFKD", name.translate(_LETTERS))
        letters = "".join(letter for letter in parts if not unicodedata.combining(letter))
        folded.append(letters if letters.isascii() else f"class {i}")
    return tuple(name.replace("…", "...") for name in unique_names(folded, _LONGEST_NAME))


def fit_text(text: str, room: float, font: Font) -> str:
    """The text, or its start and its end: long names of one data set often start, or end, with the same words."""
    if font.getlength(text) <= room:
        return text
    for kept in range(len(text) - 1, 0, -1):
        tail = kept // 2
        short = f"{text[: kept - tail].rstrip()}...{text[len(text) - tail :].lstrip()}"
        if font.getlength(short) <= room:
            return short
    return "..."


def _fitted(image: Image.Image, side: int) -> Image.Image:
    """At most side x side: small images by a whole factor with visible pixels, large ones smoothly."""
    longest = max(image.size)
    if longest <= side:
        factor = side // longest
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    size = (max(1, round(image.width * side / longest)), max(1, round(image.height * side / longest)))
    return image.resize(size, Image.Resampling.LANCZOS)


def _mark(draw: ImageDraw.ImageDraw, x: int, y: int, right: bool) -> None:
    """A tick or a cross: a shape, because not everybody sees the colour."""
    if right:
        draw.line([(x, y), (x + 4, y + 5), (x + 12, y - 5)], _RIGHT, 2, joint="curve")
    else:
        for slope in (1, -1):
            draw.line([(x + 1, y - 5 * slope), (x + 11, y + 5 * slope)], _WRONG, 2)


def _percent(share: float) -> str:
    return f"{np.floor(100 * share):.0f}%" if share > 0.99 else f"{share:.0%}"  # 100% is certain, 99.9% is not
