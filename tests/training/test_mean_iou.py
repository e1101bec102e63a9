"""Mean IoU against sets of pixels; counted in any portions, and on two processes, it is the same."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import evaluate
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import metrics_worker
from support.processes import together

from hf_px.core.forward import IGNORE
from hf_px.training.metrics import Accuracy, MeanIoU, confusion


def by_sets(called: np.ndarray, truth: np.ndarray, classes: int) -> dict | None:
    """As the words say it: |A ∩ B| / |A ∪ B| of two sets of pixels."""
    places = [place for place in np.ndindex(truth.shape) if truth[place] != IGNORE]
    if not places:
        return None
    iou: dict[str, float | None] = {}
    for label in range(classes):
        ours = {place for place in places if called[place] == label}
        theirs = {place for place in places if truth[place] == label}
        iou[str(label)] = len(ours & theirs) / len(ours | theirs) if ours | theirs else None
    present = [value for value in iou.values() if value is not None]
    right = sum(called[place] == truth[place] for place in places)
    return {"mean_iou": sum(present) / len(present), "pixel_accuracy": right / len(places), "iou": iou}


@given(
    count=st.integers(1, 6),
    height=st.integers(1, 4),
    width=st.integers(1, 4),
    classes=st.integers(1, 7),
    used=st.integers(1, 7),
    ignored=st.sampled_from([0.0, 0.3, 0.9]),
    batch=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
def test_as_sets_of_pixels(
    count: int, height: int, width: int, classes: int, used: int, ignored: float, batch: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    called = random.integers(0, min(used, classes), (count, height, width))
    truth = random.integers(0, classes, (count, height, width)).astype(np.uint8)
    truth[random.random(truth.shape) < ignored] = IGNORE
    wanted = by_sets(called, truth, classes)
    portions, whole, gathered = (MeanIoU(classes) for _ in range(3))
    for _ in range(2):  # what was counted is forgotten
        for start in range(0, count, batch):
            portions.add_batch(predictions=called[start : start + batch], references=truth[start : start + batch])
        gathered.add_counts(confusion(torch.from_numpy(called), torch.from_numpy(truth), classes))
        if wanted is None:
            for metric in (portions, gathered):
                with pytest.raises(ValueError, match="every pixel is labelled 255"):
                    metric.compute()
            continue
        assert portions.compute() == wanted
        assert whole.compute(predictions=torch.from_numpy(called), references=torch.from_numpy(truth)) == wanted
        assert gathered.compute() == wanted


def test_by_hand() -> None:
    """Truth 0 0 1 / 1 - -, called 0 1 1 / 3 2 0: 2 is called only where nothing counts, 3 where it is not."""
    metric = MeanIoU(4, ["sky", "cat", "dog", "cow"])
    metric.add(prediction=[[0, 1, 1], [3, 2, 0]], reference=[[0, 0, 1], [1, 255, 255]])
    found = metric.compute()
    assert found["iou"] == {"sky": 1 / 2, "cat": 1 / 3, "dog": None, "cow": 0.0}
    assert found["mean_iou"] == pytest.approx((1 / 2 + 1 / 3 + 0) / 3)
    assert found["pixel_accuracy"] == 2 / 4
    json.dumps(found)  # plain numbers: it goes into a file


def test_confusion_has_the_truth_in_rows_and_a_matrix_for_each_picture() -> None:
    called = torch.tensor([[[0, 1, 1]], [[2, 2, 2]]])
    truth = torch.tensor([[[0, 0, 255]], [[2, 1, 1]]], dtype=torch.uint8)
    found = confusion(called, truth, 3)
    assert found.dtype == torch.int64
    assert found.tolist() == [[[1, 1, 0], [0, 0, 0], [0, 0, 0]], [[0, 0, 0], [0, 0, 2], [0, 0, 1]]]
    assert confusion(called[:0], truth[:0], 3).shape == (0, 3, 3)
    called = torch.randint(21, (2, 40, 50))
    assert confusion(called, called, 21).sum((1, 2)).tolist() == [2000, 2000]


def test_it_is_a_metric_of_evaluate_without_files_or_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(socket.socket, "connect", None)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    metric = MeanIoU(2)
    assert isinstance(metric, evaluate.Metric)
    metrics = evaluate.combine({"all": metric, "other": MeanIoU(2)}, force_prefix=True)
    pixels = torch.tensor([[[0, 1]]])
    metrics.add_batch(predictions=pixels, references=pixels)
    metrics.add(prediction=[[0, 0]], reference=[[0, 1]])
    assert len(metric) == 2
    found = metrics.compute()
    assert found["all_mean_iou"] == found["other_mean_iou"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found["all_iou"] == {"0": 2 / 3, "1": 1 / 2}
    assert "Count the pixels" in metric.add_batch.__doc__
    repr(metric)
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert Accuracy().compute(predictions=[1], references=[1]) == {"accuracy": 1.0}  # the neighbours still work


def test_it_holds_a_matrix_whatever_it_was_shown() -> None:
    metric = MeanIoU(3)
    pixels = torch.randint(3, (50, 64, 64))
    for _ in range(3):
        metric.add_batch(predictions=pixels, references=pixels)
    tensors = [value for value in vars(metric).values() if isinstance(value, torch.Tensor)]
    assert [tuple(tensor.shape) for tensor in tensors] == [(3, 3)]
    assert metric.writer is None
    assert metric.compute()["mean_iou"] == 1.0


P, L = torch.zeros(2, 3, 4, dtype=torch.int64), torch.zeros(2, 3, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("predictions", "references", "complaint"),
    [
        (P + 3, L, "predictions hold 3; expected classes 0 to 2$"),
        (P - 1, L, "predictions hold -1"),
        (P + 255, L, "predictions hold 255"),  # no class to answer with
        (P, L + 7, "references hold 7; expected classes 0 to 2, or 255 for none"),
        (P, L.long() - 1, "references hold -1"),
        (P[:1], L, r"predictions are \(1, 3, 4\), references \(2, 3, 4\)"),
        (P[:, :2], L, r"predictions are \(2, 2, 4\)"),
        (P[0], L[0], r"predictions are \(3, 4\)"),
        (torch.zeros(2, 3, 3, 4), L, r"predictions hold torch.float32; .*argmax\(1\)"),
        (np.zeros((2, 3, 4)), L, "predictions hold torch.float64"),
        (P, L > 3, "references hold torch.bool"),
        (P, None, "references are missing"),
        (None, L, "predictions are missing"),
    ],
)
def test_what_does_not_fit_is_refused(predictions, references, complaint: str) -> None:
    metric = MeanIoU(3)
    with pytest.raises(ValueError, match=complaint):
        metric.add_batch(predictions=predictions, references=references)
    with pytest.raises(ValueError, match="of no predictions"):  # and nothing of it was counted
        metric.compute()


def test_matrices_and_names_that_do_not_fit() -> None:
    metric = MeanIoU(3)
    for bad in (torch.zeros(2, 2, dtype=torch.int64), torch.zeros(9, dtype=torch.int64)):
        with pytest.raises(ValueError, match="expected N x 3 x 3"):
            metric.add_counts(bad)
    with pytest.raises(ValueError, match="matrices hold -1; they count pixels"):
        metric.add_counts(torch.full((3, 3), -1))
    metric.add_counts(torch.zeros(0, 3, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="of no predictions"):
        metric.compute()
    metric.add_counts(np.eye(3, dtype=np.int32))  # one matrix alone
    assert metric.compute()["mean_iou"] == 1.0
    with pytest.raises(ValueError, match="2 different names for 3 classes"):
        MeanIoU(3, ["a", "b", "a"])
    for count in (0, 256):
        with pytest.raises(ValueError, match=f"mean_iou of {count} classes"):
            MeanIoU(count)


def test_all_ignored_is_an_error_once() -> None:
    metric = MeanIoU(3)
    metric.add_batch(predictions=P, references=np.full((2, 3, 4), 255))
    with pytest.raises(ValueError, match="every pixel is labelled 255"):
        metric.compute()
    assert metric.compute(predictions=P, references=L)["pixel_accuracy"] == 1.0  # forgotten


def test_two_processes_count_each_picture_once(tmp_path: Path) -> None:
    count, batch = 13, 3  # the last round of 2 x 3 is short: accelerate fills it up with the first pictures again
    together(2, metrics_worker.main, str(tmp_path / "rank"), count, batch, True)
    ranks = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("rank.*"))]
    assert [found["world"] for found in ranks] == [2, 2]  # two really ran
    called, truth = metrics_worker.known_masks(count)
    wanted = {"seen": count, **by_sets(called.numpy(), truth.numpy(), 3)}
    assert [found["results"] for found in ranks] == [[wanted, wanted]] * 2
