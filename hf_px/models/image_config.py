"""ImageConfig: the images that a model expects, with timm's names; converted from and to transformers' processors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PROCESSOR = "preprocessor_config.json"  # transformers' file of image settings
_INTERPOLATION = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # PIL's numbers


@dataclass(frozen=True)
class ImageConfig:
    """Image settings of a model, under the names of timm's pretrained_cfg."""

    input_size: tuple[int, int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bilinear"
    crop_pct: float = 0.875
    crop_mode: str = "center"


def from_processor(processor: Mapping[str, Any], channels: int = 3) -> dict[str, Any] | None:
    """{input_size, mean, std, interpolation, crop_pct, crop_mode} of an image processor; None if it has no size."""
    sides, edge = _sides(processor.get("size")), _edge(processor.get("size"))
    crop = _sides(processor.get("crop_size")) if processor.get("do_center_crop") else None
    pct = processor.get("crop_pct")
    mode = "center"
    if crop is not None:
        # the short side is resized to `edge` (or both to `sides`), then the centre is cropped
        before = edge or (min(sides) if sides else None)
        ratio = min(crop) / before if before and processor.get("do_resize", True) else 1.0
        size, ratio = crop, min(ratio, 1.0)
    elif edge is not None and isinstance(pct, float):
        # ConvNeXt's processor crops below 384 and squashes from 384 on
        size, ratio = (edge, edge), pct if edge < 384 else 1.0
        mode = "center" if edge < 384 else "squash"
    elif sides is not None:
        size, ratio, mode = sides, 1.0, "squash"  # both sides, without keeping the aspect ratio
    elif edge is not None:
        size, ratio = (edge, edge), 1.0
    else:
        return None
    unnormalised = not processor.get("do_normalize", True)
    mean, std = processor.get("image_mean"), processor.get("image_std")
    if not unnormalised and not (_numbers(mean) and _numbers(std)):
        return None
    resample = processor.get("resample", 2)
    return {
        "input_size": (channels, *size),
        "mean": (0.0,) * channels if unnormalised else tuple(mean),  # type: ignore[arg-type]
        "std": (1.0,) * channels if unnormalised else tuple(std),  # type: ignore[arg-type]
        "interpolation": _INTERPOLATION.get(int(resample) if resample is not None else 2, "bilinear"),
        "crop_pct": ratio,
        "crop_mode": mode,
    }


def processor_config(images: Mapping[str, Any]) -> dict[str, Any]:
    """preprocessor_config.json of an image processor with the settings `images`."""
    _, height, width = images["input_size"]
    numbers = {name: number for number, name in _INTERPOLATION.items()}
    config = {
        "do_resize": True,
        "resample": numbers.get(images.get("interpolation", "bilinear"), 3),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(images["mean"]),
        "image_std": list(images["std"]),
    }
    if images.get("crop_mode") == "squash" or (images.get("crop_pct") == 1.0 and height != width):
        return {"image_processor_type": "ViTImageProcessor", "size": {"height": height, "width": width}, **config}
    return {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": int(min(height, width) / (images.get("crop_pct") or 1.0))},
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
        "do_convert_rgb": True,
        **config,
    }


def _sides(size: Any) -> tuple[int, int] | None:
    if isinstance(size, int):
        return size, size
    if isinstance(size, Mapping) and isinstance(size.get("height"), int) and isinstance(size.get("width"), int):
        return size["height"], size["width"]
    return None


def _edge(size: Any) -> int | None:
    edge = size.get("shortest_edge") if isinstance(size, Mapping) else None
    return edge if isinstance(edge, int) else None


def _numbers(values: Any) -> bool:
    return isinstance(values, (list, tuple)) and bool(values) and all(isinstance(v, (int, float)) for v in values)
