"""A task is a record: its data sets, its metric, and what the metric takes from the logits. All share one loop.

    classification   one label per image: cross-entropy over images, accuracy
    segmentation     one label per pixel, 255 for none: cross-entropy over labelled pixels, mean IoU

Losses and heads (losses.py, core/head.py) see the task from the shape of the targets and from the model.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..data import TestImages, TestPairs, TrainImages, TrainPairs, pair_batches, pruning_batches
from ..data.presets import TaskName
from ..models.networks import encoder_of


@dataclass(frozen=True)
class Task:
    name: TaskName
    pipeline: str  # the Hub's name of the task
    headline: str  # the metric to show
    train_set: Callable[..., Any]  # (data, images, seed)[(epoch, index)] -> (x, target)
    test_set: Callable[..., Any]  # (data, images)[index] -> (x, target)
    pruning_set: Callable[..., list[tuple[Tensor, Tensor]]]
    prune_batch_size: int  # default that fits into memory
    metric: Callable[[Sequence[str]], Any]  # from the class names
    measure: Callable[[Tensor, Tensor], tuple[Tensor, ...]]  # logits, targets -> per example, to be gathered and added
    add: Callable[..., None]  # (metric, *measured)

    def test_batch(self, height: int, width: int) -> int:
        """Batch size for evaluation; logits per pixel take much memory."""
        return 256 if self is CLASSIFICATION else max(1, min(256, 2**21 // (height * width)))

    def answers(self, classes: int, height: int, width: int) -> tuple[int, ...]:
        """Shape of the logits of one example."""
        return (classes,) if self is CLASSIFICATION else (classes, height, width)


# metrics are imported late: the package evaluate takes seconds, and pruning alone needs none


def _accuracies(names: Sequence[str]) -> Any:
    from .metrics import classification_metrics

    return classification_metrics(len(names))


def _best(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    from .metrics import ranked

    return ranked(logits), labels


def _mean_iou(names: Sequence[str]) -> Any:
    from .metrics import MeanIoU

    return MeanIoU(len(names), names)


def _counts(logits: Tensor, label_maps: Tensor) -> tuple[Tensor]:
    """One matrix per image instead of its pixels: less to send between processes."""
    from .metrics import confusion

    return (confusion(logits.argmax(1), label_maps, logits.shape[1]),)


CLASSIFICATION = Task(
    "classification",
    "image-classification",
    "accuracy",
    TrainImages,
    TestImages,
    pruning_batches,
    prune_batch_size=100,
    metric=_accuracies,
    measure=_best,
    add=lambda metric, best, labels: metric.add_batch(predictions=best, references=labels),
)
SEGMENTATION = Task(
    "segmentation",
    "image-segmentation",
    "mean_iou",
    TrainPairs,
    TestPairs,
    pair_batches,
    prune_batch_size=8,
    metric=_mean_iou,
    measure=_counts,
    add=lambda metric, counts: metric.add_counts(counts),
)


def task_of(model: str) -> Task:
    """The task of a model, by its name, or by the architecture that config.json of its directory names."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # loading it will say what is wrong
        model = json.loads((Path(model).expanduser() / "config.json").read_text(encoding="utf-8"))["architecture"]
    return CLASSIFICATION if encoder_of(str(model)) is None else SEGMENTATION
