"""A task is a record: which examples, which metric, what it takes from the logits. The loop is the same for all.

    classification   one label an image: cross-entropy over images, accuracy
    segmentation     one label a pixel, 255 for none: cross-entropy over the pixels that have one, mean IoU

The loss (train.distilled), the batches (torch's own collate: pictures come as squares) and the head (head.head_of) tell
from the shape of the targets and from the model what to do, so a record does not repeat them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..data import TestImages, TestPairs, TrainImages, TrainPairs, pair_batches, pruning_batches
from ..data.presets import TaskName
from ..models.networks import encoder_of


@dataclass(frozen=True)
class Task:
    name: TaskName
    pipeline: str  # the Hub's word for it
    headline: str  # of its metrics, the one to show
    train_set: Callable[..., Any]  # (data, images, seed)[(epoch, index)] -> (x, target)
    test_set: Callable[..., Any]  # (data, images)[index] -> (x, target)
    pruning_set: Callable[..., list[tuple[Tensor, Tensor]]]
    prune_batch_size: int  # if nobody says: what fits into memory
    norms: Mapping[str, str]  # a method's `norm` if nobody says, where its own default does not do
    metric: Callable[[Sequence[str]], Any]  # by the names of the classes
    measure: Callable[[Tensor, Tensor], tuple[Tensor, ...]]  # logits, targets -> by example, to be gathered and added
    add: Callable[..., None]  # (metric, *measured)

    def test_batch(self, height: int, width: int) -> int:
        """Examples to evaluate at once: logits of pixels are many."""
        return 256 if self is CLASSIFICATION else max(1, min(256, 2**21 // (height * width)))

    def answers(self, classes: int, height: int, width: int) -> tuple[int, ...]:
        """The shape of the logits of one example."""
        return (classes,) if self is CLASSIFICATION else (classes, height, width)


# evaluate takes seconds to import, and who only prunes needs no metric


def _accuracies(names: Sequence[str]) -> Any:
    from .metrics import classification_metrics

    return classification_metrics(len(names))


def _best(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    from .metrics import ranked

    return ranked(logits), labels


def _mean_iou(names: Sequence[str]) -> Any:
    from .metrics import MeanIoU

    return MeanIoU(len(names), names)


def _counts(logits: Tensor, masks: Tensor) -> tuple[Tensor]:
    """A matrix an image, not its pixels: that is what goes between processes."""
    from .metrics import confusion

    return (confusion(logits.argmax(1), masks, logits.shape[1]),)


CLASSIFICATION = Task(
    "classification",
    "image-classification",
    "accuracy",
    TrainImages,
    TestImages,
    pruning_batches,
    prune_batch_size=100,
    norms={},
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
    norms={"px": "flow"},  # by the default, batch, the deep branch starves the shallow one: see scorers/px.py
    metric=_mean_iou,
    measure=_counts,
    add=lambda metric, counts: metric.add_counts(counts),
)


def task_of(model: str) -> Task:
    """What a model of that name is for."""
    return CLASSIFICATION if encoder_of(model) is None else SEGMENTATION
