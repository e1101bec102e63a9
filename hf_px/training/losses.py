"""Losses: cross-entropy, distillation from a teacher, and their mean over an epoch, for images and for pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.forward import IGNORE
from .plan import Plan


def distillation_loss(
    logits: Tensor, targets: Tensor, teacher: Tensor | None, *, weight: float, temperature: float, smoothing: float
) -> Tensor:
    """(1 - α) CE(z, y) + α t² KL(softmax(z_teacher / t) || softmax(z / t)); CE alone without a teacher.

    The mean over images, or over the pixels that have a label; zero if none has.
    """
    t, count = temperature, label_counts(targets).sum().clamp(min=1)
    if targets.dim() == 1:  # label 255 is a class of ImageNet here, not IGNORE
        loss = F.cross_entropy(logits.float(), targets, label_smoothing=smoothing)
    else:
        total = F.cross_entropy(
            logits.float(), targets, ignore_index=IGNORE, label_smoothing=smoothing, reduction="sum"
        )
        loss = total / count
    if teacher is None:
        return loss
    student, target = (F.log_softmax(z.float() / t, dim=1) for z in (logits, teacher))
    divergence = F.kl_div(student, target, log_target=True, reduction="none").sum(1)
    if targets.dim() > 1:
        divergence = divergence * (targets != IGNORE)
    return (1 - weight) * loss + weight * t * t * divergence.sum() / count


def label_counts(targets: Tensor) -> Tensor:
    """Number of labels of each example: 1 for an image, the number of labelled pixels for a label map."""
    return torch.ones_like(targets) if targets.dim() == 1 else (targets != IGNORE).flatten(1).sum(1)


def part_weights(accelerator: Any, plan: Plan, step: int, targets: Sequence[Tensor]) -> list[float]:
    """The factor on the mean loss of each part of this process's step.

    accelerate divides by `accumulation` and DDP by `processes`. With these factors every image of the step counts 1/b,
    and every labelled pixel counts the same, whatever part and process it is in.
    """
    counts = [int(label_counts(target).sum()) for target in targets]
    total = plan.size(step)
    if targets[0].dim() > 1:
        mine = torch.tensor(sum(counts), device=accelerator.device)
        total = max(1, int(accelerator.reduce(mine, "sum")))
    return [plan.processes * plan.accumulation * count / total for count in counts]


class EpochLoss:
    """The mean training loss of an epoch: Σ over steps, summed over processes whenever a checkpoint is due.

    The sum is taken at the same steps in every run, killed or not, since its last bits depend on the order. Between
    checkpoints the main process holds what was gathered, and every process what it has added since.
    """

    def __init__(self, accelerator: Any, plan: Plan) -> None:
        self._accelerator, self._plan = accelerator, plan
        self.total = torch.zeros((), device=accelerator.device)
        self._sum = self.total

    def load_(self, total: Tensor) -> None:
        self.total = total.to(self._accelerator.device) * self._accelerator.is_main_process

    def add(self, loss: Tensor) -> None:
        self.total = self.total + loss.detach() / self._plan.accumulation

    def gather_(self) -> None:
        self._sum = self._accelerator.reduce(self.total, "sum")
        self.total = self._sum if self._accelerator.is_main_process else torch.zeros_like(self._sum)

    def end(self) -> float:
        """The mean over the steps of the gathered epoch; the next epoch starts at zero."""
        value = float(self._sum) / (self._plan.processes * self._plan.steps_per_epoch)
        self.total = torch.zeros_like(self.total)
        return value
