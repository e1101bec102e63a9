"""Model and data made to fit: size of the images, names of the classes, and zeros sent through to see that it runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..core.errors import first_line
from ..core.forward import output_tensor
from ..data import Data, data_config, takes_whole
from .tasks import CLASSIFICATION, Task
from .train import Plan, channels_last


def images_of_(model: nn.Module, data: Data, task: Task, side: int | None) -> dict[str, Any]:
    """What the model takes, at the size that was asked for; the model then says so too, and its ticket."""
    images = dict(data_config(model))
    channels, *own = images["input_size"]
    if side is None and data.name == "digits" and own == [32, 32]:
        side = 16  # digits are 8 pixels wide: a quarter of the work, and nothing lost
    if side is not None:
        images["input_size"] = (channels, side, side)
    if task is not CLASSIFICATION:
        images |= {"crop_pct": 1.0, "crop_mode": "border"}  # timm's word nearest to data/fit.py
    elif takes_whole(data, images):
        images |= {"crop_pct": 1.0, "crop_mode": "squash"}
    inner = getattr(model, "timm_model", model)
    if isinstance(told := getattr(inner, "pretrained_cfg", None), dict):
        told |= {key: images[key] for key in ("input_size", "crop_pct", "crop_mode")}
    else:
        model.image_config = images  # type: ignore[assignment]  # a note on the module, no part of it
    return images


def name_classes_(model: nn.Module, names: tuple[str, ...]) -> None:
    """In the words of the model's own library, so that the ticket answers with them."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "id2label"):  # transformers' pipelines answer with these
        config.id2label = dict(enumerate(names))
        config.label2id = {name: i for i, name in enumerate(names)}
    told = getattr(model, "pretrained_cfg", None)
    if isinstance(told, dict) and names != tuple(map(str, range(len(names)))):
        told["label_names"] = names


@torch.no_grad()
def check_runs(name: str, model: nn.Module, data: Data, task: Task, images: dict[str, Any], plan: Plan) -> None:
    """An error now rather than after the pruning."""
    size, classes = images["input_size"], len(data.classes)
    if task is not CLASSIFICATION and min(size[1:]) < 17:
        raise ValueError(f"--image_size {min(size[1:])}: too small for a network that looks at sixteenths; at least 17")
    try:
        logits = output_tensor(model(channels_last(torch.zeros(2, *size))))
    except Exception as error:  # whatever a model does with images that it does not take
        raise ValueError(f"{name} does not run on images of {'x'.join(map(str, size))}: {first_line(error)}") from error
    if logits.shape[1:] != task.answers(classes, *size[1:]):
        raise ValueError(
            f"{name} answers with {tuple(logits.shape[1:])} numbers an image, {data.name} has {classes} classes; "
            f"is it for {task.name}?"
        )
    parts = plan.processes * plan.accumulation
    if task is not CLASSIFICATION and plan.examples // plan.steps_per_epoch < 2 * parts:
        raise ValueError(
            "a step has single pictures, of which batch norm after the pooling has no statistics; --batch_size must be "
            f"at least {2 * parts}, or take fewer processes"
        )
