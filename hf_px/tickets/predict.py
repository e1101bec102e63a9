"""Predictions of a ticket for images: argmax_c f(x)[c] of every pixel, or softmax(f(x)) of the whole image.

An image is preprocessed as in the test reported on the card: with the ticket's own size, mean, std and crop. These
settings and the class names come from an untrusted file, so they are checked and bounded before use.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor, nn

from ..core.errors import first_line
from ..core.forward import IGNORE, output_tensor, undisturbed
from ..core.text import LONGEST, plain
from ..data import Pairs
from ..data.model_inputs import data_config, num_classes
from ..data.segmentation.letterbox import Letterbox
from ..data.segmentation.overlay import colours, overlay, side_by_side
from ..data.transforms import image_transform
from ..models.architecture import pipeline_task
from ..models.config_marks import NOT_FOR_TIMM
from ..models.image_config import PROCESSOR, from_processor
from ..models.remote import Source
from .directory import CONFIG
from .provenance import never_trained
from .ticket_file import DENSE, PACKED, read_header

# formats that PIL decodes itself; others start a program (EPS) or are rarely photographs
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm"}
_MOST_BYTES = 2**20  # largest JSON file with image settings
_MOST_SIDE = 4096  # largest side of a model's input; the largest ImageNet models take 1024
_MOST_IN_LEGEND = 40
_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")


def read_image(path: str | os.PathLike[str]) -> Image.Image:
    """RGB image, rotated by its EXIF orientation; every error is a ValueError that names the file."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"{path}: {'is a directory; name an image in it' if path.is_dir() else 'no such file'}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PIL warns about large images and odd EXIF; it refuses what is too large
            with Image.open(path, formats=FORMATS) as file:
                if file.mode in ("F", "I") or file.mode.startswith("I;"):  # values above 255 would become white
                    raise ValueError("more than 8 bits per channel; save it as an 8-bit PNG or JPEG")
                return ImageOps.exif_transpose(file).convert("RGB")
    except UnidentifiedImageError as error:
        raise ValueError(f"{path}: not an image; it should be one of {', '.join(FORMATS)}") from error
    except Image.DecompressionBombError as error:
        raise ValueError(
            f"{path}: too many pixels to be a photograph ({first_line(error)}); shrink it first"
        ) from error
    except Exception as error:  # decoders may raise anything on a damaged file
        raise ValueError(f"{path}: cannot be read ({plain(first_line(error), 200)})") from error


def image_files(paths: Iterable[Path]) -> list[Path]:
    """The paths, and instead of a folder the images in it and below it, in alphabetical order."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            if not path.is_file():
                raise ValueError(f"{path}: no such file")
            found.append(path)
            continue
        below = [file for file in path.rglob("*") if file.suffix.lower() in _SUFFIXES and file.is_file()]
        inside = sorted(file for file in below if not any(p.startswith(".") for p in file.relative_to(path).parts))
        if not inside:
            raise ValueError(f"{path}: no image in it or below it, by their names: {', '.join(sorted(_SUFFIXES))}")
        found += inside
    return list(dict.fromkeys(found))


def class_names(model: nn.Module) -> tuple[str, ...] | None:
    """Names of the classes in order, printable and unique; None if the model has none."""
    id2label = getattr(getattr(model, "config", None), "id2label", None)
    count = num_classes(model)
    if isinstance(id2label, Mapping) and count and set(id2label) == set(range(count)):
        names = [id2label[i] for i in range(count)]
        if names != [f"LABEL_{i}" for i in range(count)]:  # the placeholders of transformers
            return unique_names(names)
    config = getattr(getattr(model, "timm_model", model), "pretrained_cfg", None)
    labels = config.get("label_names") if isinstance(config, Mapping) else None
    return unique_names(labels) if isinstance(labels, (list, tuple)) and labels and len(labels) == count else None


def unique_names(names: Sequence[Any], longest: int = LONGEST) -> tuple[str, ...]:
    """Names of classes as they are shown: printable, each once."""
    words = [plain(name, longest) or f"class {i}" for i, name in enumerate(names)]
    counts = Counter(words)  # ImageNet has two classes called crane
    return tuple(f"{word} ({i})" if counts[word] > 1 else word for i, word in enumerate(words))


def class_name(names: Sequence[str] | None, label: int) -> str:
    return names[label] if names is not None and label < len(names) else f"class {label}"


def ticket_task(source: Source) -> str | None:
    """The Hub's name of the ticket's task, from config.json alone, before weights are downloaded; None if unknown."""
    path = source.file(CONFIG)
    try:
        config = {} if path is None else _read_json(path)
    except ValueError as error:
        raise ValueError(f"{source.name}: {error}") from error
    name = config.get("architecture")
    return pipeline_task(config | ({"architecture": name.removesuffix(NOT_FOR_TIMM)} if isinstance(name, str) else {}))


def ticket_record(source: Source) -> Mapping[str, Any]:
    """Where the ticket comes from, by its header; empty if it has none. Untrusted."""
    path = source.file(PACKED) or source.file(DENSE)
    record = ((path and read_header(path)) or {}).get("ticket")
    return record if isinstance(record, Mapping) else {}


def is_untrained(source: Source) -> bool:
    """True if the ticket records that its weights, or those of its head, are random."""
    return never_trained(ticket_record(source))


def ticket_images(source: str | os.PathLike[str] | Source, model: nn.Module) -> dict[str, Any]:
    """Image settings of the ticket: data_config(model), updated by its preprocessor_config.json if there is one."""
    source = source if isinstance(source, Source) else Source.of(source)
    where = f"{source.name}: {CONFIG}"
    try:
        images = dict(data_config(model))
        # transformers models carry no image settings, except for its wrapper around timm models
        needs_processor = hasattr(model, "config") and not hasattr(model, "timm_model")
        if needs_processor and (path := source.file(PROCESSOR)) is not None:
            where = f"{source.name}: {PROCESSOR}"
            images |= from_processor(_read_json(path), channels=images["input_size"][0]) or {}
        return _checked(images)
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError, OverflowError) as error:
        raise ValueError(f"{where}: invalid image settings: {plain(first_line(error), 200)}") from error


def segment(model: nn.Module, image: Image.Image, images: Mapping[str, Any]) -> np.ndarray:
    """Label map of the most likely classes, uint8 H x W, in the size of the image; `images` is from ticket_images."""
    return segment_all(model, [image], images)[0]


def segment_all(model: nn.Module, batch: Sequence[Image.Image], images: Mapping[str, Any]) -> list[np.ndarray]:
    """segment() of several images in one call of the model."""
    letterbox = Letterbox(images)
    x = torch.stack([letterbox(image)[0] for image in batch])
    logits = finite_logits(model, x)
    if logits.dim() != 4:
        raise ValueError(f"{type(model).__name__} returns shape {tuple(logits.shape[1:])}, not logits for every pixel")
    if logits.shape[1] > IGNORE:
        raise ValueError(f"{type(model).__name__} has {logits.shape[1]} classes; a label map has {IGNORE} at most")
    if logits.shape[2:] != x.shape[2:]:  # segmenters of transformers predict at a quarter of the size
        logits = F.interpolate(logits, x.shape[2:], mode="bilinear", align_corners=False)
    return [letterbox.label_map(found, image) for found, image in zip(logits, batch)]


def classify(model: nn.Module, image: Image.Image, images: Mapping[str, Any], k: int = 5) -> list[tuple[str, float]]:
    """The k most likely classes with their probabilities, best first; all classes if there are fewer."""
    return classify_all(model, [image], images, k)[0]


def classify_all(
    model: nn.Module, batch: Iterable[Image.Image], images: Mapping[str, Any], k: int = 5
) -> list[list[tuple[str, float]]]:
    """classify() of several images in one call of the model; of an iterator, one image at a time is in memory."""
    if k < 1:
        raise ValueError(f"`k` is {k}; at least 1")
    transform, mode = image_transform(images), "L" if images["input_size"][0] == 1 else "RGB"
    inputs = [transform(image.convert(mode)) for image in batch]
    if not inputs:
        return []
    logits = finite_logits(model, torch.stack(inputs))
    if logits.dim() != 2 or num_classes(model) == 0:
        raise ValueError(f"{type(model).__name__} returns shape {tuple(logits.shape[1:])} and is not a classifier")
    best, names = logits.softmax(1).topk(min(k, logits.shape[1])), class_names(model)
    return [
        [(class_name(names, label), value) for value, label in zip(values, labels)]
        for values, labels in zip(best.values.tolist(), best.indices.tolist())
    ]


def class_shares(labels: np.ndarray, names: Sequence[str] | None) -> list[tuple[int, str, float]]:
    """(label, name, share of the pixels) of each class in a label map, the largest first."""
    counts = np.bincount(labels.reshape(-1), minlength=1)
    shares = [(label, class_name(names, label), int(n) / labels.size) for label, n in enumerate(counts.tolist()) if n]
    return sorted(shares, key=lambda share: (-share[2], share[0]))


def draw_segmentation(
    image: Image.Image, labels: np.ndarray, names: tuple[str, ...] | None, side: int = 480
) -> Image.Image:
    """The image, next to it the predicted label map, below them a legend of its classes."""
    background = background_class(names)
    palette = colours(256)
    seen = [(name, palette[label]) for label, name, _ in class_shares(labels, names) if label != background]
    legend = {name: (int(r), int(g), int(b)) for name, (r, g, b) in seen[:_MOST_IN_LEGEND]}
    if len(seen) > _MOST_IN_LEGEND:
        legend[f"and {len(seen) - _MOST_IN_LEGEND} more"] = (255, 255, 255)
    predicted = overlay(image, labels, background=background)
    return side_by_side([[image, predicted]], ["image", "ticket"], legend | background_legend(names), side)


def gallery(
    test: Pairs, images: Mapping[str, Any], classes: Sequence[str], models: Mapping[str, nn.Module], count: int = 4
) -> Image.Image:
    """A few test images side by side: the image, its true label map, and the predictions of each model.

    The images are evenly spaced in the test set: chosen by position, not by how good the predictions are.
    """
    rows, shown, background = [], set(), background_class(classes)
    for index in sorted({round(i * (len(test) - 1) / max(1, count - 1)) for i in range(min(count, len(test)))}):
        image = test.image(index)
        label_maps = [test.label_map(index), *(segment(model, image, images) for model in models.values())]
        rows.append([image, *(overlay(image, labels, background=background) for labels in label_maps)])
        shown |= {int(label) for labels in label_maps for label in np.unique(labels)} - {background, IGNORE}
    palette = [(r, g, b) for r, g, b in colours(len(classes)).tolist()]
    legend = {classes[label]: palette[label] for label in sorted(shown)}
    return side_by_side(rows, ["image", "truth", *models], legend | background_legend(classes))


def background_class(names: Sequence[str] | None) -> int | None:
    """Class 0 as in Pascal VOC, unless it has another name: in ADE20K it is wall."""
    return 0 if names is None or names[0].lower() in ("background", "0") else None


def background_legend(names: Sequence[str] | None) -> dict[str, tuple[int, int, int]]:
    """Legend entry of the class that is not coloured, if there is one."""
    label = background_class(names)
    return {} if label is None else {f"{class_name(names, label)}: not coloured": (255, 255, 255)}


def finite_logits(model: nn.Module, x: Tensor) -> Tensor:
    """f(x) of a batch; the model's mode is restored."""
    like = next(model.parameters(), torch.empty(0))  # the sparse runtime has none: float32 on the CPU
    try:
        with torch.no_grad(), undisturbed(model):
            logits = output_tensor(model(x.to(like.device, like.dtype))).float().cpu()
    except Exception as error:  # a model may raise anything on an input it does not support
        size = "x".join(map(str, x.shape[1:]))
        raise ValueError(f"{type(model).__name__} does not run on an image of {size}: {first_line(error)}") from error
    if not logits.isfinite().all():
        raise ValueError(f"{type(model).__name__} returns inf or nan; its weights are damaged, or not trained")
    return logits


def _read_json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes; at most {_MOST_BYTES:,} are read")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is damaged ({first_line(error)})") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return settings


def _checked(images: dict[str, Any]) -> dict[str, Any]:
    """Check the ranges of all settings; mean and std get one value per channel."""
    channels, height, width = images["input_size"] = tuple(images["input_size"])  # JSON has no tuples
    if channels not in (1, 3):
        raise ValueError(f"{channels} input channels; an image has three, or one if it is grey")
    sides, crop_pct = (height, width), images.get("crop_pct") or 1.0
    if not all(type(side) is int and 1 <= side <= _MOST_SIDE for side in sides):
        raise ValueError(f"images of {plain(height)}x{plain(width)}; at most {_MOST_SIDE} a side")
    is_number = isinstance(crop_pct, (int, float)) and math.isfinite(crop_pct)
    if not is_number or not 0.1 <= crop_pct <= 10 or max(sides) / crop_pct > 2 * _MOST_SIDE:
        raise ValueError(f"crop_pct {plain(crop_pct)}: expected the share of the image inside the crop")
    for key in ("mean", "std"):
        values = [float(value) for value in images[key]]
        values = values if len(values) == channels else [sum(values) / max(1, len(values))] * channels
        if not all(map(math.isfinite, values)) or (key == "std" and min(values) <= 0):
            raise ValueError(f"{key} {plain(images[key])}: not valid for normalisation")
        images[key] = tuple(values)
    if images.get("interpolation", "bilinear") not in _INTERPOLATIONS:
        raise ValueError(f"interpolation {plain(images['interpolation'])}: not one of {', '.join(_INTERPOLATIONS)}")
    return images
