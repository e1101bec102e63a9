"""What a ticket sees in a picture: argmax_c f(x)[c] of every pixel, or softmax(f(x)) of the whole.

The picture becomes x as in the test that the ticket's card tells of: by its own size, mean, std and crop. All that it
says of those, and the names of its classes, are a stranger's: checked and bounded before use.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor, nn

from ..core.errors import first_line
from ..core.forward import IGNORE, output_tensor, undisturbed
from ..core.text import plain
from ..data.model_inputs import data_config, num_classes
from ..data.segmentation.letterbox import Fit
from ..data.segmentation.overlay import colours, overlay, side_by_side
from ..data.transforms import picture_transform
from ..models.config_marks import NOT_FOR_TIMM
from ..models.image_config import PROCESSOR, image_config
from ..models.remote import Source
from .card import task_of
from .directory import CONFIG

# PIL's own decoders; of the others some start a program (EPS) or fetch nothing but trouble
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_MOST_BYTES = 2**20  # of a JSON file about a picture
_MOST_SIDE = 4096  # of what a model takes; ImageNet's largest models take 1024
_MOST_IN_LEGEND = 40
_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")


def read_image(path: str | os.PathLike[str]) -> Image.Image:
    """RGB, upright as its EXIF says; every error is a ValueError that names the file."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"{path}: {'is a directory; name a picture in it' if path.is_dir() else 'no such file'}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PIL warns of large pictures and odd EXIF; what is too large, it refuses
            with Image.open(path, formats=FORMATS) as file:
                if file.mode in ("F", "I") or file.mode.startswith("I;"):  # all above 255 would become white
                    raise ValueError("more than 8 bits a channel; save it as an 8-bit PNG or JPEG")
                return ImageOps.exif_transpose(file).convert("RGB")
    except UnidentifiedImageError as error:
        raise ValueError(f"{path}: not a picture; it should be one of {', '.join(FORMATS)}") from error
    except Image.DecompressionBombError as error:
        raise ValueError(
            f"{path}: too many pixels to be a photograph ({first_line(error)}); shrink it first"
        ) from error
    except Exception as error:  # what a damaged file does to a decoder can be anything
        raise ValueError(f"{path}: cannot be read ({plain(first_line(error), 200)})") from error


def class_names(model: nn.Module) -> tuple[str, ...] | None:
    """By number, each made plain and unlike the others; None where the model does not say them."""
    config = getattr(model, "config", None)
    told = getattr(config, "id2label", None)
    count = num_classes(model)
    if isinstance(told, Mapping) and count and set(told) == set(range(count)):
        names = [told[i] for i in range(count)]
        if names != [f"LABEL_{i}" for i in range(count)]:  # transformers' own, which say nothing
            return _unlike(names)
    record = getattr(getattr(model, "timm_model", model), "pretrained_cfg", None)
    labels = record.get("label_names") if isinstance(record, Mapping) else None
    return _unlike(labels) if isinstance(labels, (list, tuple)) and labels and len(labels) == count else None


def _unlike(names: Any) -> tuple[str, ...]:
    words = [plain(name) or f"class {i}" for i, name in enumerate(names)]
    often = Counter(words)  # ImageNet has two cranes
    return tuple(f"{word} ({i})" if often[word] > 1 else word for i, word in enumerate(words))


def name_of(names: tuple[str, ...] | None, label: int) -> str:
    return names[label] if names is not None and label < len(names) else f"class {label}"


def task_told(source: Source) -> str | None:
    """What the ticket is for, by config.json alone: before its weights are fetched. None where that does not say."""
    path = source.file(CONFIG)
    try:
        record = {} if path is None else _json(path)
    except ValueError as error:
        raise ValueError(f"{source.name}: {error}") from error
    name = record.get("architecture")
    return task_of(record | ({"architecture": name.removesuffix(NOT_FOR_TIMM)} if isinstance(name, str) else {}))


def expects(source_or_dir: str | os.PathLike[str] | Source, model: nn.Module) -> dict[str, Any]:
    """The images that the ticket takes: data_config(model), or what preprocessor_config.json beside it says."""
    source = source_or_dir if isinstance(source_or_dir, Source) else Source.of(source_or_dir)
    where = f"{source.name}: {CONFIG}"
    try:
        images = dict(data_config(model))
        # transformers models do not say it themselves, but those that it only wraps around timm's
        other = hasattr(model, "config") and not hasattr(model, "timm_model")
        if other and (path := source.file(PROCESSOR)) is not None:
            where = f"{source.name}: {PROCESSOR}"
            images |= image_config(_json(path), channels=images["input_size"][0]) or {}
        return _checked(images)
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError, OverflowError) as error:
        raise ValueError(f"{where}: not understood, what pictures it takes: {plain(first_line(error), 200)}") from error


def segment(model: nn.Module, image: Image.Image, images: Mapping[str, Any]) -> np.ndarray:
    """The likeliest class of every pixel, uint8 H x W, as large as the picture; `images` as `expects` tells it."""
    fit = Fit(images)
    x, _ = fit(image)
    logits = _logits(model, x)
    if logits.dim() != 3:
        raise ValueError(f"{type(model).__name__} answers with {tuple(logits.shape)} numbers, not for every pixel")
    if len(logits) > IGNORE:
        raise ValueError(f"{type(model).__name__} has {len(logits)} classes; labels are bytes, for {IGNORE} at most")
    if logits.shape[1:] != x.shape[1:]:  # transformers' segmenters answer at a quarter of the size
        logits = F.interpolate(logits[None], x.shape[1:], mode="bilinear", align_corners=False)[0]
    return fit.labels(logits, image)


def classify(model: nn.Module, image: Image.Image, images: Mapping[str, Any], k: int = 5) -> list[tuple[str, float]]:
    """The k likeliest classes and their probabilities, best first; all of them where there are fewer."""
    if k < 1:
        raise ValueError(f"k={k}: at least one class")
    x = picture_transform(images)(image.convert("L" if images["input_size"][0] == 1 else "RGB"))
    logits = _logits(model, x)
    if logits.dim() != 1 or num_classes(model) == 0:
        raise ValueError(f"{type(model).__name__} answers with {tuple(logits.shape)} numbers and is no classifier")
    best, names = logits.softmax(0).topk(min(k, len(logits))), class_names(model)
    return [(name_of(names, label), value) for value, label in zip(best.values.tolist(), best.indices.tolist())]


def shares(labels: np.ndarray, names: tuple[str, ...] | None) -> list[tuple[int, str, float]]:
    """(label, name, share of the pixels) of each class that is there, the largest first."""
    counts = np.bincount(labels.reshape(-1), minlength=1)
    found = [(label, name_of(names, label), int(n) / labels.size) for label, n in enumerate(counts.tolist()) if n]
    return sorted(found, key=lambda one: (-one[2], one[0]))


def drawn(image: Image.Image, labels: np.ndarray, names: tuple[str, ...] | None, side: int = 480) -> Image.Image:
    """The picture, beside it what the ticket sees, below them the classes that are there."""
    background = background_of(names)
    palette = colours(256)
    seen = [(name, palette[label]) for label, name, _ in shares(labels, names) if label != background]
    legend = {name: (int(r), int(g), int(b)) for name, (r, g, b) in seen[:_MOST_IN_LEGEND]}
    if len(seen) > _MOST_IN_LEGEND:
        legend[f"and {len(seen) - _MOST_IN_LEGEND} more"] = (255, 255, 255)
    seen_as = overlay(image, labels, background=background)
    return side_by_side([[image, seen_as]], ["image", "ticket"], legend | uncoloured(names), side)


def background_of(names: Sequence[str] | None) -> int | None:
    """By VOC's custom class 0, unless it has a name of its own: ADE20K's is a wall."""
    return 0 if names is None or names[0].lower() in ("background", "0") else None


def uncoloured(names: Sequence[str] | None) -> dict[str, tuple[int, int, int]]:
    """For a legend: the class that is left as it is, if there is one."""
    label = background_of(names)
    return (
        {}
        if label is None
        else {f"{name_of(None if names is None else tuple(names), label)}: not coloured": (255, 255, 255)}
    )


def _logits(model: nn.Module, x: Tensor) -> Tensor:
    """f(x) of one picture, without the batch; the model as it was before."""
    like = next(model.parameters())
    try:
        with torch.no_grad(), undisturbed(model):
            logits = output_tensor(model(x[None].to(like.device, like.dtype)))[0].float().cpu()
    except Exception as error:  # whatever a model does with a picture that it does not take
        size = "x".join(map(str, x.shape))
        raise ValueError(f"{type(model).__name__} does not run on a picture of {size}: {first_line(error)}") from error
    if not logits.isfinite().all():
        raise ValueError(f"{type(model).__name__} answers with inf or nan; its weights are damaged, or not trained")
    return logits


def _json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes; a description of images is shorter")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is damaged ({first_line(error)})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds no object of settings")
    return found


def _checked(images: dict[str, Any]) -> dict[str, Any]:
    """Numbers that images can have; mean and std one for each channel."""
    channels, height, width = images["input_size"] = tuple(images["input_size"])  # JSON has no tuples
    if channels not in (1, 3):
        raise ValueError(f"it takes {channels} channels; a picture has three, or one if it is grey")
    sides, ratio = (height, width), images.get("crop_pct") or 1.0
    if not all(type(side) is int and 1 <= side <= _MOST_SIDE for side in sides):
        raise ValueError(f"pictures of {plain(height)}x{plain(width)}; at most {_MOST_SIDE} a side")
    if not _number(ratio) or not 0.1 <= ratio <= 10 or max(sides) / ratio > 2 * _MOST_SIDE:
        raise ValueError(f"crop_pct {plain(ratio)}: the part of a picture that is seen")
    for key in ("mean", "std"):
        values = [float(value) for value in images[key]]
        values = values if len(values) == channels else [sum(values) / max(1, len(values))] * channels
        if not all(map(math.isfinite, values)) or (key == "std" and min(values) <= 0):
            raise ValueError(f"{key} {plain(images[key])}: not numbers to scale a picture by")
        images[key] = tuple(values)
    if images.get("interpolation", "bilinear") not in _INTERPOLATIONS:
        raise ValueError(f"interpolation {plain(images['interpolation'])}: not one of {', '.join(_INTERPOLATIONS)}")
    return images


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
