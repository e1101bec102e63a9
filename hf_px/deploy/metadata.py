"""What an exported file says of itself: which ticket it is, its classes, and how images are prepared for it.

All values are text; what is no word is JSON. A reader needs nothing of hf_px to prepare an image by it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import nn

from .. import __version__
from ..core.shareable import shareable
from ..models.architecture import pipeline_task
from ..tickets.predict import class_names
from ..tickets.shrunk_ticket import read_shrunk
from ..tickets.ticket import Ticket


def metadata_of(
    ticket: Ticket, model: nn.Module, images: Mapping[str, Any], *, normalises: bool, half: bool, shrunk: bool
) -> dict[str, str]:
    """{key: text}; `images` are the settings of the ticket, with the size of the export."""
    record, origin = ticket.model_record(), ticket.provenance
    task = pipeline_task(record)
    found = {
        "written_by": f"hf_px {__version__}",
        "digest": ticket.mask.digest(),
        "architecture": record.get("architecture") or (record.get("architectures") or [None])[0],
        "base": origin.get("base"),
        "license": origin.get("license"),
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


def preprocessing(images: Mapping[str, Any], *, letterbox: bool, normalises: bool) -> dict[str, Any]:
    """Settings of the images under timm's names, and who normalises: the caller, or the graph."""
    channels, height, width = images["input_size"]
    return {
        "size": [height, width],
        "channels": "RGB" if channels == 3 else "grey",
        "range": [0, 1],
        "mean": list(images["mean"]),
        "std": list(images["std"]),
        "normalisation": "in the graph" if normalises else "outside",
        "interpolation": "bilinear" if letterbox else images.get("interpolation", "bilinear"),
        "crop_mode": "letterbox" if letterbox else images.get("crop_mode", "center"),
        "crop_pct": 1.0 if letterbox else images.get("crop_pct") or 1.0,
    }
