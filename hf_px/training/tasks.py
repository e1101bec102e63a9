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

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..core.forward import IGNORE, output_tensor
from ..data import TestImages, TestPairs, TrainImages, TrainPairs, pair_batches, pruning_batches
from ..data.presets import TaskName
from ..data.sampling import BATCH_SIZE
from ..data.segmentation.datasets import PAIR_BATCH_SIZE
from ..models.networks import encoder_of
from .losses import label_counts
from .plan import channels_last


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

    @torch.no_grad()
    def evaluate(
        self, accelerator: Any, model: nn.Module, batches: Any, metric: Any, progress: bool = False
    ) -> dict[str, Any]:
        """{metric: value} and the mean loss; every example of the test set counts once, on one process or many.

        `batches` is a DataLoader prepared by accelerate: it pads the last batch of each process, and gather_for_metrics
        drops the padding.
        """
        model.eval()
        total, labels, examples = 0.0, 0, 0
        for x, y in tqdm(batches, desc="images", unit="batch", disable=not progress, leave=False):
            with accelerator.autocast():
                logits = output_tensor(model(channels_last(x))).float()
            losses = F.cross_entropy(logits, y, ignore_index=IGNORE if y.dim() > 1 else -100, reduction="none")
            losses = losses.double().view(len(y), -1).sum(1)
            found = (losses, label_counts(y), *self.measure(logits, y))
            losses, counts, *measured = accelerator.gather_for_metrics(found)
            self.add(metric, *measured)
            total, labels, examples = total + float(losses.sum()), labels + int(counts.sum()), examples + len(losses)
        if examples != len(batches.dataset):
            raise RuntimeError(f"{examples} examples evaluated, the test set has {len(batches.dataset)}")
        return {**metric.compute(), "loss": total / labels}


def _metrics() -> Any:
    """Imported late: the package evaluate takes seconds, and pruning alone needs no metric."""
    from . import metrics

    return metrics


CLASSIFICATION = Task(
    "classification",
    "image-classification",
    "accuracy",
    TrainImages,
    TestImages,
    pruning_batches,
    prune_batch_size=BATCH_SIZE,
    metric=lambda names: _metrics().classification_metrics(len(names)),
    measure=lambda logits, labels: (_metrics().ranked(logits), labels),
    add=lambda metric, best, labels: metric.add_batch(predictions=best, references=labels),
)
SEGMENTATION = Task(
    "segmentation",
    "image-segmentation",
    "mean_iou",
    TrainPairs,
    TestPairs,
    pair_batches,
    prune_batch_size=PAIR_BATCH_SIZE,
    metric=lambda names: _metrics().MeanIoU(len(names), names),
    # one matrix per image instead of its pixels: less to send between processes
    measure=lambda logits, maps: (_metrics().confusion(logits.argmax(1), maps, logits.shape[1]),),
    add=lambda metric, counts: metric.add_counts(counts),
)


def task_of(model: str) -> Task:
    """The task of a model, by its name, or by the architecture that config.json of its directory names."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # load() reports what is wrong
        model = json.loads((Path(model).expanduser() / "config.json").read_text(encoding="utf-8"))["architecture"]
    return CLASSIFICATION if encoder_of(str(model)) is None else SEGMENTATION
