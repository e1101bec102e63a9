"""Accuracy and top k against scikit-learn's; on two processes, without duplicates."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import evaluate
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, top_k_accuracy_score
from support import metrics_worker
from support.processes import together

from hf_px.training.metrics import Accuracy, TopK, classification_metrics, ranked


@given(
    count=st.integers(1, 60),
    classes=st.integers(2, 9),
    k=st.integers(1, 12),
    batch=st.integers(1, 25),
    seed=st.integers(0, 2**31),
)
def test_as_scikit_learn_counts(count: int, classes: int, k: int, batch: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=generator)
    labels = torch.randint(classes, (count,), generator=generator)
    top, first = TopK(k, num_classes=classes), Accuracy()
    for _ in range(2):  # what was counted is forgotten
        for x, y in zip(logits.split(batch), labels.split(batch)):
            top.add_batch(predictions=ranked(x, k), references=y)
            first.add_batch(predictions=x.argmax(1), references=y)
        (value,) = top.compute().values()
        # scikit-learn: with two classes the scores are one column; with k >= classes all are right, with a warning
        if k >= classes:
            assert value == 1.0
        elif classes > 2:
            assert value == top_k_accuracy_score(labels, logits, k=k, labels=np.arange(classes))
        assert first.compute() == {"accuracy": accuracy_score(labels, logits.argmax(1))}


def test_names_and_forms() -> None:
    assert TopK(5).compute(predictions=[[4, 3, 2, 1, 0, 9]], references=[9]) == {"top_5_accuracy": 0.0}
    assert TopK(5).compute(predictions=[[4, 3, 2, 1, 9, 0]], references=[9]) == {"top_5_accuracy": 1.0}
    assert Accuracy().compute(predictions=[1, 2, 2], references=np.array([1, 2, 0])) == {"accuracy": 2 / 3}
    assert Accuracy().compute(predictions=torch.tensor([[1, 0], [0, 1]]), references=(1, 1)) == {"accuracy": 0.5}
    assert TopK(1).compute(predictions=[1], references=[1]) == {"accuracy": 1.0}
    metric = Accuracy()
    metric.add(prediction=3, reference=3)
    metric.add(prediction=[2, 3], reference=3)
    metric.add_batch(predictions=torch.empty(0, 5, dtype=torch.int64), references=torch.empty(0, dtype=torch.int64))
    assert metric.compute() == {"accuracy": 0.5}
    assert isinstance(metric, evaluate.Metric)


def test_both_at_once() -> None:
    logits = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(50) % 8
    both = classification_metrics(8)
    both.add_batch(predictions=ranked(logits), references=labels)
    assert both.compute() == {
        "accuracy": accuracy_score(labels, logits.argmax(1)),
        "top_5_accuracy": top_k_accuracy_score(labels, logits, k=5),
    }
    few = classification_metrics(3)
    few.add_batch(predictions=ranked(logits[:, :3]), references=labels % 3)
    assert list(few.compute()) == ["accuracy"]  # top 5 of three classes would say 1, whatever the model


def test_equal_logits_rank_by_class() -> None:
    assert ranked(torch.zeros(2, 7), 3).tolist() == [[0, 1, 2]] * 2
    assert ranked(torch.tensor([[0.0, 2.0, 1.0, 2.0]]), 9).tolist() == [[1, 3, 2, 0]]


@pytest.mark.parametrize(
    ("metric", "predictions", "references", "complaint"),
    [
        (Accuracy(), [1, 2], [1], r"predictions are \(2, 1\), references \(1,\)"),
        (Accuracy(), [1, 2], [[1], [2]], r"references \(2, 1\); expected"),
        (TopK(5), [1, 2], [1, 2], r"predictions are \(2,\).*expected \(N, 5\)"),
        (TopK(5), [[1, 2, 3]], [1], r"3 classes are ranked, 5 are needed; .*num_classes=3"),
        (Accuracy(), torch.randn(2, 10), [1, 2], r"predictions hold torch.float32; .*ranked\(logits\)"),
        (Accuracy(), [1, 2], None, "references are missing"),
    ],
)
def test_what_does_not_fit_is_refused(metric, predictions, references, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        metric.add_batch(predictions=predictions, references=references)
    with pytest.raises(ValueError, match="of no predictions"):  # and nothing of it was counted
        metric.compute()
    with pytest.raises(ValueError, match="top 0"):
        TopK(0)


def test_no_file_is_written_and_instances_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", str(tmp_path / "cache"))
    metrics = [Accuracy() for _ in range(8)]

    def run(n: int) -> list[float]:
        found = []
        for _ in range(3):
            for i in range(20):
                metrics[n].add_batch(predictions=[int(i < n)] * 5, references=[1] * 5)
            found.append(metrics[n].compute()["accuracy"])
        return found

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, range(8))) == [[n / 20] * 3 for n in range(8)]
    assert list(tmp_path.iterdir()) == []


def test_metrics_leave_random_states_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), np.random.get_state()[2]
    classification_metrics(10).compute(predictions=ranked(torch.eye(10)), references=range(10))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert np.random.get_state()[2] == before[2]


def test_two_processes_count_each_image_once(tmp_path: Path) -> None:
    count, batch = 37, 5  # the last round of 2 x 5 is short: accelerate fills it up with the first images again
    together(2, metrics_worker.main, str(tmp_path / "rank"), count, batch, False)
    ranks = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("rank.*"))]
    assert [found["world"] for found in ranks] == [2, 2]  # two really ran
    logits, labels = metrics_worker.known(count)
    top_5 = top_k_accuracy_score(labels, logits, k=5, labels=range(10))
    wanted = {"seen": count, "accuracy": 3 / count, "top_5_accuracy": top_5}
    assert [found["results"] for found in ranks] == [[wanted, wanted]] * 2
