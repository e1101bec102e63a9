"""evaluate: the metrics of a task and the mean loss over a test set, on one process or many."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..core.forward import IGNORE, output_tensor
from .losses import label_counts
from .plan import channels_last
from .tasks import Task


@torch.no_grad()
def evaluate(accelerator: Any, model: nn.Module, batches: Any, task: Task, metric: Any) -> dict[str, Any]:
    """{metric: value} and the mean loss; every example of the test set counts once.

    `batches` is a DataLoader prepared by accelerate: it pads the last batch of each process, and gather_for_metrics
    drops the padding.
    """
    model.eval()
    total, labels, examples = 0.0, 0, 0
    for x, y in batches:
        with accelerator.autocast():
            logits = output_tensor(model(channels_last(x))).float()
        losses = F.cross_entropy(logits, y, ignore_index=IGNORE if y.dim() > 1 else -100, reduction="none")
        losses = losses.double().view(len(y), -1).sum(1)
        losses, counts, *measured = accelerator.gather_for_metrics((losses, label_counts(y), *task.measure(logits, y)))
        task.add(metric, *measured)
        total, labels, examples = total + float(losses.sum()), labels + int(counts.sum()), examples + len(losses)
    if examples != len(batches.dataset):
        raise RuntimeError(f"{examples} examples evaluated, the test set has {len(batches.dataset)}")
    return {**metric.compute(), "loss": total / labels}
