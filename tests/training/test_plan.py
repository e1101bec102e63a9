"""The plan: every example once an epoch, the same draws from any step on, learning rates of torch's schedulers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.plans import plans
from torch import nn

from hf_px.training.config import TrainingOptions
from hf_px.training.plan import Plan, step_seed


@given(plans)
def test_an_epoch_has_every_example_once_whoever_sees_it(plan: Plan) -> None:
    shares = [list(plan.draws(0, rank)) for rank in range(plan.processes)]
    assert all(len(share) == plan.steps * plan.accumulation for share in shares)  # none waits for another
    for epoch in range(plan.epochs):
        seen = [index for share in shares for part in share for e, index in part if e == epoch]
        assert sorted(seen) == list(range(plan.examples))


@given(plans, st.integers(0, 400))
def test_from_any_step_on_the_draws_are_those_of_the_whole(plan: Plan, start: int) -> None:
    whole = list(plan.draws(0, 0))
    start = min(start, plan.steps)
    assert list(plan.draws(start, 0)) == whole[start * plan.accumulation :]


def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ValueError, match="`batch_size` 100 counts all processes, and 3 processes x 1"):
        Plan(1000, 100, 1, processes=3)
    with pytest.raises(ValueError, match="too few to split a step into 8 parts"):
        Plan(5, 8, 1, processes=8)


def test_orders_differ_by_epoch_and_by_seed() -> None:
    first = [Plan(50, 50, 2, seed).draws(0, 0) for seed in (0, 1)]
    (a, b), (c, _) = ([[i for _, i in part] for part in draws] for draws in first)
    assert a != b and a != c and a != sorted(a)


def rate(epoch: float, **knobs) -> float:
    usual = {"lr": 0.1, "epochs": 160, "lr_schedule": "step", "lr_drops": [120, 80], "lr_drop_factor": 0.1}
    return TrainingOptions(**{**usual, **knobs}).for_weights(trained=False).learning_rate(epoch)


def test_rates_are_those_of_torch() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], 0.1)
    steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, [80, 120], 0.1)
    for epoch in range(160):
        assert rate(epoch) == pytest.approx(steps.get_last_lr()[0])
        assert rate(epoch + 0.99) == pytest.approx(rate(epoch))
        optimizer.step()
        steps.step()
    optimizer = torch.optim.SGD([weight], 0.1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 160)
    for epoch in range(160):
        assert rate(epoch, lr_schedule="cosine") == pytest.approx(cosine.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        cosine.step()
    assert rate(5, lr_schedule="constant") == 0.1
    assert [rate(e, warmup_epochs=4.0) for e in (0, 1, 4)] == pytest.approx([0, 0.025, 0.1])
    assert rate(100, lr_schedule="cosine", warmup_epochs=40.0) == pytest.approx(0.05)


def test_seeds_of_neighbours_are_far_apart() -> None:
    seeds = {
        step_seed(s, step, part, rank) for s in range(3) for step in range(50) for part in range(3) for rank in range(4)
    }
    assert len(seeds) == 3 * 50 * 3 * 4
