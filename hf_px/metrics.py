"""Accuracy: right answers / answers, and top k: the share of labels among the k classes ranked first.

Metrics of `evaluate`, so that they combine with all others there. Its own accuracy is code that evaluate.load
downloads; these are here. On several processes, gather first: metric.add_batch(**accelerator.gather_for_metrics(…)).
"""

from __future__ import annotations

from typing import Any

import datasets
import evaluate
import numpy as np
import torch
from torch import Tensor


class TopK(evaluate.Metric):
    """top-k = #{n : y_n among the first k of the ranking of x_n} / N, by whole numbers up to the one division.

    predictions: N x K class indices, best first, K >= k; for k = 1 also N. references: N.
    With `num_classes` below k, a ranking of all classes will do, and every label is in it.
    """

    def __init__(self, k: int = 5, num_classes: int | None = None, **kwargs: Any) -> None:
        if k < 1:
            raise ValueError(f"top {k}: k must be at least 1")
        self.k = k
        self.num_classes = num_classes
        self.columns = min(k, num_classes or k)
        # in memory: files would be shared by all runs on this machine, under one name
        super().__init__(keep_in_memory=True, **kwargs)

    @property
    def key(self) -> str:
        return "accuracy" if self.k == 1 else f"top_{self.k}_accuracy"

    def _info(self) -> evaluate.MetricInfo:
        ranking = datasets.List(datasets.Value("int64"), length=self.columns)
        return evaluate.MetricInfo(
            description=f"The share of labels among the {self.k} classes ranked first.",
            citation="",
            inputs_description="predictions: N x K class indices, best first. references: N class indices.",
            features=datasets.Features({"predictions": ranking, "references": datasets.Value("int64")}),
        )

    def _build_data_dir(self) -> str:
        return ""  # nothing is written, so no folder is made: the cache may be read-only

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """Add N rankings and N labels; an empty batch adds nothing."""
        ranked, labels = _integers("predictions", predictions), _integers("references", references)
        if ranked.ndim == 1 and self.columns == 1:
            ranked = ranked[:, None]
        if ranked.ndim != 2 or labels.ndim != 1 or len(ranked) != len(labels):
            raise ValueError(
                f"{self.key}: predictions are {ranked.shape}, references {labels.shape}; expected (N, {self.columns}) "
                f"class indices, best first{', or (N,)' if self.columns == 1 else ''}, and (N,) labels"
            )
        if ranked.shape[1] < self.columns:
            raise ValueError(
                f"{self.key}: {ranked.shape[1]} classes are ranked, {self.columns} are needed; rank more "
                f"(logits.topk({self.columns}).indices), or say num_classes={ranked.shape[1]} if there are no more"
            )
        if len(labels):
            # not super(): evaluate copies this function onto the instance
            evaluate.Metric.add_batch(self, predictions=ranked[:, : self.columns], references=labels, **kwargs)

    def add(self, *, prediction: Any = None, reference: Any = None, **kwargs: Any) -> None:
        """Add one ranking and its label."""
        self.add_batch(predictions=_integers("prediction", prediction)[None], references=[reference], **kwargs)

    def compute(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> dict[str, float]:
        """The share of all that was added since the last time, which is then forgotten."""
        if predictions is not None or references is not None:
            self.add_batch(predictions=predictions, references=references)
        if self.writer is None:
            raise ValueError(f"{self.key} of no predictions; call add_batch first")
        return evaluate.Metric.compute(self, **kwargs)

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        hits = np.asarray(predictions).reshape(len(references), -1) == np.asarray(references)[:, None]
        return {self.key: int(hits.any(axis=1).sum()) / len(references)}


class Accuracy(TopK):
    """accuracy = #{n : the class ranked first is y_n} / N; predictions are N classes, or N rankings."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(k=1, **kwargs)


def classification_metrics(num_classes: int) -> evaluate.CombinedEvaluations:
    """Accuracy, and top 5 where it says something: among five classes or fewer every label is in the first five.

    add_batch(predictions=ranked(logits), references=labels), then compute() -> {"accuracy": …, "top_5_accuracy": …}.
    """
    return evaluate.combine([Accuracy(), *([TopK(5)] if num_classes > 5 else [])])


def ranked(logits: Tensor, k: int = 5) -> Tensor:
    """N x min(k, classes) class indices, best first; of equal logits the lower class, on every device."""
    return torch.sort(logits, dim=-1, descending=True, stable=True).indices[..., :k]


def _integers(name: str, values: Any) -> np.ndarray:
    if values is None:
        raise ValueError(f"{name} are missing")
    found = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if found.size and found.dtype.kind not in "iu":
        raise ValueError(f"{name} hold {found.dtype}; expected class indices: rank the logits first (metrics.ranked)")
    return found.astype(np.int64)
