"""Metrics: accuracy, top-k accuracy (the share of labels among the k classes ranked first), and mean IoU of pixels.

They subclass evaluate.Metric, so they combine with those of that package; evaluate.load("accuracy") downloads code.
On several processes, gather first: metric.add_batch(**accelerator.gather_for_metrics(…)), and for pixels
metric.add_counts(accelerator.gather_for_metrics(confusion(…))), which is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np
import torch
from torch import Tensor

from ..core.forward import IGNORE


class CountingMetric(evaluate.Metric):
    """A metric that counts examples as they come and stores the sums only. Nothing is written to disk."""

    key: str  # name of the metric in the results

    def __init__(self, counts: Tensor, info: evaluate.MetricInfo, **kwargs: Any) -> None:
        self.counts, self.seen, self._about = counts, 0, info
        # in memory: on disk all runs of this machine would share one file
        super().__init__(keep_in_memory=True, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        return self._about

    def _build_data_dir(self) -> str:
        return ""  # no folder is needed: the cache may be read-only

    def __len__(self) -> int:
        return self.seen

    def add(self, *, prediction: Any = None, reference: Any = None, **kwargs: Any) -> None:
        """Add one example."""
        # evaluate.combine passes `predictions` here too
        one, truth = kwargs.get("predictions", prediction), kwargs.get("references", reference)
        self.add_batch(predictions=_indices("prediction", one)[None], references=_indices("reference", truth)[None])

    def compute(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> dict[str, Any]:
        """The metric of all examples added since the last call, which are then forgotten."""
        if predictions is not None or references is not None:
            self.add_batch(predictions=predictions, references=references)
        counts, seen = self.counts, self.seen
        self.counts, self.seen = torch.zeros_like(counts), 0
        if not seen:
            raise ValueError(f"{self.key} of no predictions; call add_batch first")
        return self._compute(counts, seen)

    def _add_counts(self, counts: Tensor) -> None:
        """Add the counts of N examples."""
        self.counts += counts.sum(0).cpu()
        self.seen += len(counts)


class TopK(CountingMetric):
    """top-k = #{n : y_n among the first k of the ranking of x_n} / N, counted in integers, divided once.

    predictions: N x K class indices, best first, K >= k; for k = 1 also N. references: N.
    If `num_classes` is below k, a ranking of all classes is enough, and every label is in it.
    """

    def __init__(self, k: int = 5, num_classes: int | None = None, **kwargs: Any) -> None:
        if k < 1:
            raise ValueError(f"top {k}: k must be at least 1")
        self.columns = min(k, num_classes or k)
        self.key = "accuracy" if k == 1 else f"top_{k}_accuracy"
        ranking = datasets.List(datasets.Value("int64"), length=self.columns)
        info = evaluate.MetricInfo(
            description=f"The share of labels among the {k} classes ranked first.",
            citation="",
            inputs_description="predictions: N x K class indices, best first. references: N class indices.",
            features=datasets.Features({"predictions": ranking, "references": datasets.Value("int64")}),
        )
        super().__init__(torch.zeros((), dtype=torch.int64), info, **kwargs)

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """Add N rankings and N labels; an empty batch adds nothing."""
        ranks, labels = _indices("predictions", predictions), _indices("references", references)
        if ranks.dim() == 1 and self.columns == 1:
            ranks = ranks[:, None]
        if ranks.dim() != 2 or labels.dim() != 1 or len(ranks) != len(labels):
            raise ValueError(
                f"{self.key}: predictions are {tuple(ranks.shape)}, references {tuple(labels.shape)}; expected "
                f"(N, {self.columns}) class indices, best first{', or (N,)' if self.columns == 1 else ''}, and (N,) "
                "labels"
            )
        if ranks.shape[1] < self.columns:
            raise ValueError(
                f"{self.key}: {ranks.shape[1]} classes are ranked, {self.columns} are needed; rank more "
                f"(logits.topk({self.columns}).indices), or set num_classes={ranks.shape[1]} if there are no more"
            )
        self._add_counts((ranks[:, : self.columns] == labels.to(ranks.device)[:, None]).any(1))

    def _compute(self, hits: Tensor, seen: int) -> dict[str, float]:
        return {self.key: int(hits) / seen}


class Accuracy(TopK):
    """accuracy = #{n : the class ranked first is y_n} / N; predictions are N classes, or N rankings."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(k=1, **kwargs)


def classification_metrics(num_classes: int) -> evaluate.CombinedEvaluations:
    """Accuracy, and top 5 if there are more than five classes.

    add_batch(predictions=ranked(logits), references=labels), then compute() -> {"accuracy": …, "top_5_accuracy": …}.
    """
    return evaluate.combine([Accuracy(), *([TopK(5)] if num_classes > 5 else [])])


def confusion(predictions: Any, references: Any, num_classes: int) -> Tensor:
    """N x C x C, int64: for each image, the number of pixels of true class i (rows) that were predicted as j.

    predictions, references: N x H x W class indices. Pixels labelled 255 do not count.
    """
    predicted, truth = _indices("predictions", predictions), _indices("references", references)
    if predicted.dim() != 3 or predicted.shape != truth.shape:
        raise ValueError(
            f"predictions are {tuple(predicted.shape)}, references {tuple(truth.shape)}; expected N x H x W classes in "
            "both: take logits.argmax(1), at the size of the labels"
        )
    truth = truth.to(predicted.device)
    counts = truth != IGNORE
    for name, values in (("predictions", predicted), ("references", truth[counts])):
        odd = values[(values < 0) | (values >= num_classes)]
        if len(odd):
            also = f", or {IGNORE} for none" if name == "references" else ""
            raise ValueError(f"{name} hold {int(odd[0])}; expected classes 0 to {num_classes - 1}{also}")
    count = len(predicted)
    image = torch.arange(count, device=predicted.device).view(-1, 1, 1).expand_as(predicted)
    cell = (image * num_classes + truth) * num_classes + predicted
    return torch.bincount(cell[counts], minlength=count * num_classes**2).view(count, num_classes, num_classes)


class MeanIoU(CountingMetric):
    """IoU_c = TP / (TP + FP + FN), and its mean over the classes that occur in the truth or in the predictions.

    A class that is predicted but not in the truth has IoU 0 and counts; one that is in neither is None and does not.
    """

    key = "mean_iou"

    def __init__(self, num_classes: int, names: Sequence[str] | None = None, **kwargs: Any) -> None:
        if not 1 <= num_classes <= IGNORE:
            raise ValueError(f"mean_iou of {num_classes} classes; there may be 1 to {IGNORE}, since {IGNORE} is none")
        names = [str(label) for label in range(num_classes)] if names is None else list(names)
        if len(set(names)) != num_classes:
            raise ValueError(f"mean_iou: {len(set(names))} different names for {num_classes} classes")
        self.class_names = names
        label_map = datasets.List(datasets.List(datasets.Value("int64")))
        info = evaluate.MetricInfo(
            description="Intersection over union of the pixels of each class, and the mean.",
            citation="",
            inputs_description=f"predictions, references: N x H x W class indices; references {IGNORE}: no class.",
            features=datasets.Features({"predictions": label_map, "references": label_map}),
        )
        super().__init__(torch.zeros(num_classes, num_classes, dtype=torch.int64), info, **kwargs)

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """Count the pixels of N images; an empty batch adds nothing."""
        self.add_counts(confusion(predictions, references, len(self.class_names)))

    def add_counts(self, matrices: Any) -> None:
        """Add matrices of `confusion`, of this or other processes: N x C x C, or C x C."""
        found = _indices("matrices", matrices)
        if found.dim() not in (2, 3) or found.shape[-2:] != self.counts.shape:
            classes = len(self.class_names)
            raise ValueError(f"mean_iou: matrices are {tuple(found.shape)}; expected N x {classes} x {classes}")
        if found.numel() and int(found.min()) < 0:
            raise ValueError(f"mean_iou: matrices hold {int(found.min())}; they count pixels")
        self._add_counts(found.view(-1, *self.counts.shape))

    def _compute(self, counts: Tensor, seen: int) -> dict[str, Any]:
        hits, truth, predicted = (part.tolist() for part in (counts.diagonal(), counts.sum(1), counts.sum(0)))
        if not sum(truth):
            raise ValueError(f"mean_iou: every pixel is labelled {IGNORE}, so there is nothing to measure")
        unions = [t + c - h for h, t, c in zip(hits, truth, predicted)]
        iou = [h / union if union else None for h, union in zip(hits, unions)]
        present = [value for value in iou if value is not None]
        return {
            "mean_iou": sum(present) / len(present),
            "pixel_accuracy": sum(hits) / sum(truth),
            "iou": dict(zip(self.class_names, iou)),
        }


def ranked(logits: Tensor, k: int = 5) -> Tensor:
    """N x min(k, classes) class indices, best first; equal logits rank by class index, on every device."""
    return torch.sort(logits, dim=-1, descending=True, stable=True).indices[..., :k]


def _indices(name: str, values: Any) -> Tensor:
    """As an integer tensor on its device: examples are counted there, and only the counts are moved."""
    if values is None:
        raise ValueError(f"{name} are missing")
    if not isinstance(values, Tensor):
        found = np.asarray(values)  # torch does not know all of numpy's integers
        values = torch.from_numpy(found.astype(np.int64 if found.dtype.kind in "iu" else np.float64))
    if values.numel() and (values.is_floating_point() or values.dtype == torch.bool):
        raise ValueError(
            f"{name} hold {values.dtype}; expected class indices: metrics.ranked(logits) of images, logits.argmax(1) "
            "of pixels"
        )
    return values.detach().long()
