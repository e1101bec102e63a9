"""Latency: what is measured, the verdict on it, and the name of the machine."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hf_px.analysis.latency import Latency, latency, latency_verdict, machine


def test_laws_of_latency() -> None:
    calls: list[tuple[str, bool]] = []

    class Told(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            calls.append((str(self.out_features), self.training))
            assert not torch.is_grad_enabled()
            return super().forward(x)

    models = {"one": Told(4, 1), "two": Told(4, 2)}
    found = latency(models, torch.randn(3, 4), seconds=0.0, least=6)
    assert list(found) == ["one", "two"]
    for each in found.values():
        assert 0 < each.low <= each.median <= each.high and each.runs == 6
    assert not any(training for _, training in calls)
    names = [name for name, _ in calls]
    turns = [names[i : i + 2] for i in range(0, len(names), 2)]
    assert len(turns) == 2 + 6 and all(set(turn) == {"1", "2"} for turn in turns)  # in turns, warm-up first
    assert ["1", "2"] in turns[2:] and ["2", "1"] in turns[2:]
    assert latency(models, torch.randn(3, 4), seconds=0.05)["one"].runs > 5  # goes on while there is time
    with pytest.raises(ValueError, match="`models` is empty"):
        latency({}, torch.randn(1))


def test_verdict() -> None:
    slow, middle, fast = (Latency(m, 0.9 * m, 1.1 * m, 9) for m in (0.02, 0.0201, 0.01))
    assert "no difference within the spread; unstructured zeros do not make it faster here" in latency_verdict(
        slow, middle
    )
    assert "50% faster here, beyond the spread" in latency_verdict(slow, fast) and "another cause" in latency_verdict(
        slow, fast
    )
    assert "100% slower here; unstructured zeros do not make dense kernels faster" in latency_verdict(fast, slow)
    assert (
        "10 ms (9 to 11)" in latency_verdict(slow, fast) and latency_verdict(slow, fast).count(".") <= 3
    )  # one sentence


def test_machine() -> None:
    name = machine()
    assert f"{torch.get_num_threads()} thread" in name and f"torch {torch.__version__}" in name
    assert len(name.split(",")[0]) > 2
