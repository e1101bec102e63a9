"""What an exported file says of itself: which ticket it is, its classes, and how images are prepared for it.

All values are text; what is no word is JSON. A reader needs nothing of hf_px to prepare an image by it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .. import __version__
from ..core.shareable import shareable
from ..core.text import plain
from ..models.architecture import pipeline_task
from ..tickets.predict import class_names
from ..tickets.shrunk_ticket import read_shrunk
from ..tickets.ticket import Ticket


def metadata_of(
    ticket: Ticket, model: nn.Module, images: Mapping[str, Any], normalises: bool, half: bool, shrunk: bool
) -> dict[str, str]:
    """{key: text}; `images` are the settings of the ticket, with the size of the export."""
    record, origin = ticket.model_record(), ticket.provenance
    task = pipeline_task(record)
    found = {
        "written_by": f"hf_px {__version__}",
        "digest": ticket.mask.digest(),
        "weights_digest": _digest(model),
        "architecture": _word(record.get("architecture") or (record.get("architectures") or [None])[0]),
        "base": _word(origin.get("base")),
        "license": _word(origin.get("license")),
        "task": task,
        "class_names": class_names(model),
        "preprocessing": preprocessing(images, letterbox=task == "image-segmentation", normalises=normalises),
        "dtype": "float16" if half else "float32",
        "shrunk": "yes" if shrunk or read_shrunk(origin) else "no",
    }
    texts = {key: value for key, value in found.items() if value is not None}
    return {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in shareable(texts).items()
    }


def _digest(model: nn.Module) -> str:
    """SHA-256 of names and values of all tensors, in float32: a mask's digest does not tell two trainings apart."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode() + tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _word(value: Any) -> str | None:
    """A name from an untrusted ticket, fit to be printed."""
    return plain(value) if isinstance(value, str) else None


def preprocessing(images: Mapping[str, Any], *, letterbox: bool, normalises: bool) -> dict[str, Any]:
    """What the caller does to an image: resize, crop, and x = (pixels - mean) / std of pixels from 0 to 1.

    A graph that normalises leaves the caller a mean of 0 and a std of 1; its own are those `in_graph`.
    """
    channels, height, width = images["input_size"]
    scale = {"mean": list(images["mean"]), "std": list(images["std"])}
    outside = {"mean": [0.0] * channels, "std": [1.0] * channels, "in_graph": scale} if normalises else scale
    crop = {"crop_mode": images.get("crop_mode") or "center", "crop_pct": images.get("crop_pct") or 1.0}
    return {
        "mode": "RGB" if channels == 3 else "L",  # PIL's name of the colours
        "size": [height, width],
        "interpolation": "bilinear" if letterbox else images.get("interpolation") or "bilinear",
        # shrunk to fit if it is larger, and padded on the right and below; the padding is the mean colour
        **({"crop_mode": "letterbox", "padding": scale["mean"] if normalises else 0.0} if letterbox else crop),
        **outside,
    }
