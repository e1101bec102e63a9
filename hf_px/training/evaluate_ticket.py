"""A ticket's metrics anew on labelled data: match the classes of data and ticket, then run the recipes' test loop."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..core.forward import output_tensor
from ..core.head import segments
from ..core.text import name_list, plain
from ..data import Data, num_classes, open_data
from ..runtime.fast import FastModel
from ..tickets.predict import class_names, unique_names
from .match_data import check_outputs, worker_count
from .tasks import CLASSIFICATION, SEGMENTATION, Task


@dataclass(frozen=True)
class Evaluation:
    metrics: dict[str, Any]  # accuracy or mean_iou, and what belongs to it
    images: int
    seconds: float  # reading and transforming the images included

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds


def task_of_ticket(model: nn.Module) -> Task:
    return SEGMENTATION if segments(model) else CLASSIFICATION


def open_for_ticket(source: str, model: nn.Module, split: str | None, **columns: str | None) -> Data:
    """The split to evaluate the model on, as `test`: by default the test split, or the only one."""
    task = task_of_ticket(model)
    classes = num_classes(model) or None
    return open_data(source, test_split=split, need_train=False, task=task.name, num_classes=classes, **columns)  # type: ignore[arg-type]


def class_order(model: nn.Module, data: Data, by_number: bool = False) -> tuple[int, ...]:
    """order[i]: the model's number of class i of the data, by its name if both have names; raises if classes differ.

    Labels without names may leave out the highest classes, which a small test set need not have.
    """
    theirs, names = unique_names(data.classes), class_names(model)
    count = num_classes(model) or len(theirs)
    numbered = _are_numbers(theirs)
    if len(theirs) > count or (len(theirs) < count and not numbered):
        whose = f" ({name_list(names)})" if names else ""
        raise ValueError(
            f"data {data.name}: has {len(theirs)} classes ({name_list(theirs)}), but the ticket has {count}{whose}; "
            "take data with the ticket's classes"
        )
    if names is None or numbered or by_number or _are_numbers(names):
        return tuple(range(count))
    if strange := [name for name in theirs if name not in names]:
        raise ValueError(
            f"data {data.name}: has a class {strange[0]!r}, but the ticket's classes are {name_list(names)}; if these "
            "are the same classes in the same order under other names, set `by_number`"
        )
    return tuple(names.index(name) for name in theirs)


def _are_numbers(names: Sequence[str]) -> bool:
    return tuple(names) == tuple(map(str, range(len(names))))


def evaluate_ticket(
    model: nn.Module,
    data: Data,
    images: Mapping[str, Any],
    order: Sequence[int],
    *,
    batch_size: int | None = None,
    progress: bool = True,
) -> Evaluation:
    """The metrics of a recipe's results, on data.test; `images` is from ticket_images, `order` from class_order."""
    task = task_of_ticket(model)
    accelerator = Accelerator(cpu=isinstance(model, FastModel))
    answers = _Answers(model, order).to(accelerator.device)
    check_outputs("the ticket", answers, data.name, len(order), task, dict(images))
    size = images["input_size"]
    tests = DataLoader(
        task.test_set(data, images),
        batch_size=batch_size or task.test_batch(*size[1:]),
        num_workers=worker_count(size[-1]),
    )
    names = unique_names(data.classes)
    metric = task.metric([*names, *map(str, range(len(names), len(order)))])
    start = time.perf_counter()
    try:
        metrics = task.evaluate(accelerator, answers, accelerator.prepare_data_loader(tests), metric, progress)
    except ValueError as error:  # a worker's error has a traceback in front of it
        reason = str(error).strip().splitlines()[-1].removeprefix("ValueError: ")
        raise ValueError(f"data {data.name}: {reason}") from error
    return Evaluation(metrics, len(data.test), time.perf_counter() - start)


class _Answers(nn.Module):
    """Logits in the order of the data's classes, for label maps at the size of the image."""

    def __init__(self, model: nn.Module, order: Sequence[int]) -> None:
        super().__init__()
        self.model, self.order = model.eval(), list(order)

    def forward(self, x: Tensor) -> Tensor:
        like = next(self.model.parameters(), torch.empty(0))  # the sparse runtime has none: float32 on the CPU
        logits = output_tensor(self.model(x.to(like.device, like.dtype))).float()
        if logits.dim() == 4 and logits.shape[2:] != x.shape[2:]:  # transformers' segmenters: a quarter of the size
            logits = F.interpolate(logits, x.shape[2:], mode="bilinear", align_corners=False)
        return logits if self.order == list(range(logits.shape[1])) else logits[:, self.order]


def on_card(record: Mapping[str, Any], data: Data, metric: str) -> dict[str, Any] | None:
    """The number that the ticket's record has for this metric and data set: value, and dense and split if known.

    The record is untrusted. If several fit, that of the same split comes first.
    """
    found = []
    results = record.get("results")
    for result in results if isinstance(results, list) else ():
        if not isinstance(result, Mapping) or (result.get("dataset"), result.get("metric")) != (data.dataset, metric):
            continue
        numbers = {key: float(result[key]) for key in ("value", "dense") if _is_number(result.get(key))}
        if "value" in numbers:
            found.append({**numbers, "split": plain(result.get("split", ""))})
    return min(found, key=lambda one: one["split"] != data.test_split, default=None)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
