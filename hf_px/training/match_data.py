"""Match model and data: image size, class names, and a trial forward pass."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..core.errors import first_line
from ..core.forward import output_tensor
from ..data import Data, data_config, takes_whole
from .plan import Plan, channels_last
from .tasks import CLASSIFICATION, Task


def images_of_(model: nn.Module, data: Data, task: Task, side: int | None) -> dict[str, Any]:
    """The image config of the model at the requested size. It is also stored in the model, and so in its ticket."""
    images = dict(data_config(model))
    channels, *own = images["input_size"]
    if side is None and data.name == "digits" and own == [32, 32]:
        side = 16  # digits are 8 pixels wide: 16 is a quarter of the work of 32 and loses nothing
    if side is not None:
        images["input_size"] = (channels, side, side)
    if task is not CLASSIFICATION:
        images |= {"crop_pct": 1.0, "crop_mode": "border"}  # timm's closest term to data/segmentation/letterbox.py
    elif takes_whole(data, images):
        images |= {"crop_pct": 1.0, "crop_mode": "squash"}
    inner = getattr(model, "timm_model", model)
    if isinstance(config := getattr(inner, "pretrained_cfg", None), dict):
        config |= {key: images[key] for key in ("input_size", "crop_pct", "crop_mode")}
    else:
        model.image_config = images  # type: ignore[assignment]  # an attribute for the ticket, not a submodule
    return images


def name_classes_(model: nn.Module, names: tuple[str, ...]) -> None:
    """Store the class names where the model's library looks for them, so that the ticket predicts names."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "id2label"):  # read by transformers' pipelines
        config.id2label = dict(enumerate(names))
        config.label2id = {name: i for i, name in enumerate(names)}
    timm_config = getattr(model, "pretrained_cfg", None)
    if isinstance(timm_config, dict) and names != tuple(map(str, range(len(names)))):
        timm_config["label_names"] = names


def check_runs(name: str, model: nn.Module, data: Data, task: Task, images: dict[str, Any], plan: Plan) -> None:
    """Run the model on two images of zeros: an error now rather than after pruning."""
    size = images["input_size"]
    if task is not CLASSIFICATION and min(size[1:]) < 17:
        raise ValueError(f"`image_size` {min(size[1:])} is too small for a network with output stride 16; at least 17")
    check_outputs(name, model, data.name, len(data.classes), task, images)
    parts = plan.processes * plan.accumulation
    if task is not CLASSIFICATION and plan.examples // plan.steps_per_epoch < 2 * parts:
        raise ValueError(
            "BatchNorm of the pooling branch needs at least 2 images per process and part; raise `batch_size` to "
            f"{2 * parts}, or use fewer processes"
        )


@torch.no_grad()
def check_outputs(name: str, model: nn.Module, data: str, classes: int, task: Task, images: Mapping[str, Any]) -> None:
    """Run the model on two images of zeros, and check the shape of its logits."""
    size = images["input_size"]
    try:
        logits = output_tensor(model(channels_last(torch.zeros(2, *size))))
    except Exception as error:  # any error of a model that cannot take such images
        raise ValueError(f"{name} does not run on images of {'x'.join(map(str, size))}: {first_line(error)}") from error
    if logits.shape[1:] != task.answers(classes, *size[1:]):
        raise ValueError(
            f"{name} has outputs of shape {tuple(logits.shape[1:])}, {data} has {classes} classes; "
            f"is it for {task.name}?"
        )


def worker_count(side: int, processes: int = 1) -> int:
    """Processes that decode images of this side; none for images so small that sending them costs more."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if side <= 64 else min(8, cores // processes)
