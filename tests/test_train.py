"""Training by step number: every example once an epoch, shares that add up, rates, distillation, knobs."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hf_px.core.forward import IGNORE
from hf_px.training.checkpoint import Checkpoints, load_, state_of
from hf_px.training.train import Plan, distilled, labelled, learning_rate, make_optimizer, mixed, part_weights

plans = st.builds(
    lambda n, part, processes, accumulation, epochs, seed: Plan(
        max(n, processes * accumulation * part), processes * accumulation * part, epochs, seed, processes, accumulation
    ),
    st.integers(1, 120), st.integers(2, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 9),
)  # fmt: skip


@given(plans)
def test_an_epoch_has_every_example_once_whoever_sees_it(plan: Plan) -> None:
    shares = [list(plan.draws(0, rank)) for rank in range(plan.processes)]
    assert all(len(share) == plan.steps * plan.accumulation for share in shares)  # none waits for another
    for epoch in range(plan.epochs):
        seen = [index for share in shares for part in share for e, index in part if e == epoch]
        assert sorted(seen) == list(range(plan.examples))


class Alone:
    """An Accelerator whose process holds all parts of the step, or which knows what the others hold."""

    device = torch.device("cpu")

    def __init__(self, elsewhere: int = 0) -> None:
        self.elsewhere = elsewhere

    def reduce(self, tensor: torch.Tensor, how: str) -> torch.Tensor:
        assert how == "sum"
        return tensor + self.elsewhere


@given(plans)
def test_every_example_of_a_step_weighs_the_same(plan: Plan) -> None:
    """Mean losses of parts, weighted, divided as accelerate and DDP do: Σ ℓ / b, to the last example."""
    shares = [list(plan.draws(0, rank)) for rank in range(plan.processes)]
    for step in range(plan.steps):
        parts = [p for s in shares for p in s[step * plan.accumulation : (step + 1) * plan.accumulation]]
        assert sum(map(len, parts)) == plan.size(step)
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1 and min(sizes) >= 1
        labels = [torch.zeros(size, dtype=torch.long) for size in sizes]
        for weight, size in zip(part_weights(Alone(), plan, step, labels), sizes):
            assert weight / (plan.processes * plan.accumulation) / size == pytest.approx(1 / plan.size(step))


@given(plans, st.integers(0, 400))
def test_from_any_step_on_the_draws_are_those_of_the_whole(plan: Plan, start: int) -> None:
    whole = list(plan.draws(0, 0))
    start = min(start, plan.steps)
    assert list(plan.draws(start, 0)) == whole[start * plan.accumulation :]


def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size 100 is for all processes together, and 3 processes x 1"):
        Plan(1000, 100, 1, processes=3)
    with pytest.raises(ValueError, match="too few to cut a step into 8 parts"):
        Plan(5, 8, 1, processes=8)


def test_orders_differ_by_epoch_and_by_seed() -> None:
    first = [Plan(50, 50, 2, seed).draws(0, 0) for seed in (0, 1)]
    (a, b), (c, _) = ([[i for _, i in part] for part in draws] for draws in first)
    assert a != b and a != c and a != sorted(a)


def rate(epoch: float, **knobs) -> float:
    usual = {"lr": 0.1, "epochs": 160, "schedule": "step", "drops": [120, 80], "factor": 0.1, "warmup": 0.0}
    return learning_rate(epoch, **{**usual, **knobs})


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
        assert rate(epoch, schedule="cosine") == pytest.approx(cosine.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        cosine.step()
    assert rate(5, schedule="constant") == 0.1
    assert [rate(e, warmup=4.0) for e in (0, 1, 4)] == pytest.approx([0, 0.025, 0.1])
    assert rate(100, schedule="cosine", warmup=40.0) == pytest.approx(0.05)


def test_distillation_at_its_ends_and_between() -> None:
    z, t = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)), torch.randn(6, 5)
    y = torch.arange(6) % 5
    plain = F.cross_entropy(z, y)
    assert float(distilled(z, y, None, weight=0.7, t=2.0, smooth=0.0)) == pytest.approx(float(plain), rel=1e-6)
    p, q = (t / 3).softmax(1), (z / 3).softmax(1)
    kl = float((p * (p.log() - q.log())).sum(1).mean() * 9)
    found = distilled(z, y, t, weight=0.25, t=3.0, smooth=0.0)
    assert float(found) == pytest.approx(0.75 * float(plain) + 0.25 * kl, rel=1e-5)
    assert float(distilled(z, y, z, weight=1.0, t=2.0, smooth=0.0)) == pytest.approx(0, abs=1e-6)


# masks: pixels count, not pictures


def masked(count: int, side: int = 5, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    z, t = (torch.randn(count, classes, side, side, generator=generator, dtype=torch.float64) for _ in range(2))
    y = torch.randint(classes, (count, side, side), generator=generator)
    for i in range(count):
        y[i, : i % (side + 1)] = IGNORE  # of some pictures much, of some all
    return z, y, t


@pytest.mark.parametrize("smooth", [0.0, 0.1])
def test_the_loss_of_masks_is_that_of_the_pixels_with_a_label_as_a_list(smooth: float) -> None:
    z, y, t = masked(7)
    there = y != IGNORE
    flat, labels, teacher = z.movedim(1, -1)[there], y[there], t.movedim(1, -1)[there]
    for answers, others in ((None, None), (t, teacher)):
        mine = distilled(z, y, answers, weight=0.3, t=2.0, smooth=smooth)
        theirs = distilled(flat, labels, others, weight=0.3, t=2.0, smooth=smooth)
        assert float(mine) == pytest.approx(float(theirs), rel=1e-6)
    assert labelled(y).tolist() == [int((mask != IGNORE).sum()) for mask in y]
    nothing = distilled(z.requires_grad_(), torch.full_like(y, IGNORE), t, weight=0.3, t=2.0, smooth=smooth)
    nothing.backward()
    assert float(nothing.detach()) == 0 and not z.grad.any()


@pytest.mark.parametrize(("processes", "accumulation"), [(1, 1), (1, 4), (2, 1), (2, 2), (4, 1)])
def test_cut_into_parts_the_gradient_is_that_of_the_whole_step(processes: int, accumulation: int) -> None:
    """However labelled pixels are spread over processes and parts; one part has none at all."""
    z, y, _ = masked(12)
    y[:3] = IGNORE
    z.requires_grad_()
    (whole,) = torch.autograd.grad(distilled(z, y, None, weight=0, t=1, smooth=0), z)
    plan = Plan(12, 12, 1, processes=processes, accumulation=accumulation)
    parts = torch.arange(12).tensor_split(processes * accumulation)
    total = torch.zeros_like(whole)
    for rank in range(processes):
        mine = parts[rank::processes]
        others = int(labelled(y).sum()) - sum(int(labelled(y[part]).sum()) for part in mine)
        weights = part_weights(Alone(others), plan, 0, [y[part] for part in mine])
        for part, weight in zip(mine, weights):
            loss = distilled(z[part], y[part], None, weight=0, t=1, smooth=0) * weight / accumulation / processes
            total += torch.autograd.grad(loss, z)[0]
    torch.testing.assert_close(total, whole, rtol=1e-5, atol=1e-12)


def test_seeds_of_neighbours_are_far_apart() -> None:
    seeds = {
        mixed(s, step, part, rank) for s in range(3) for step in range(50) for part in range(3) for rank in range(4)
    }
    assert len(seeds) == 3 * 50 * 3 * 4


# checkpoints


def trained(name: str, steps: int, start=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 5))
    if name == "channels last":
        model = model.to(memory_format=torch.channels_last)
    optimizer = make_optimizer(
        model, "adamw" if name == "adamw" else "nesterov", lr=0.05, momentum=0.9, weight_decay=1e-2
    )
    begin = 0
    if start is not None:
        load_(start, model, optimizer, None)
        begin = start.step
    for step in range(begin, steps):
        x = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.arange(8) % 5).backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("name", ["sgd", "adamw", "channels last"])
def test_from_a_checkpoint_on_the_bits_are_the_same(name: str, tmp_path) -> None:
    model, optimizer = trained(name, 4)
    saved = Checkpoints(tmp_path, "x")
    tensors, notes = state_of(model, optimizer, None)
    saved.save(4, tensors, notes | {"more": [1.5, "θ"]})
    found = saved.newest()
    assert found is not None and found.step == 4 and found.notes["more"] == [1.5, "θ"]
    whole, resumed = trained(name, 9)[0].state_dict(), trained(name, 9, found)[0].state_dict()
    assert all(torch.equal(whole[n], resumed[n]) for n in whole)
    assert not torch.equal(whole["0.weight"], model.state_dict()["0.weight"])


def test_old_checkpoints_go_and_a_damaged_one_is_passed_over(tmp_path, capsys) -> None:
    saved = Checkpoints(tmp_path, "x", keep=2)
    other = Checkpoints(tmp_path, "x-y")
    other.save(99, {"w": torch.ones(1)}, {})
    for step in (5, 10, 15):
        saved.save(step, {"w": torch.full((2,), float(step))}, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "x-00000010.safetensors", "x-00000015.safetensors", "x-y-00000099.safetensors",
    ]  # fmt: skip
    newest = tmp_path / "x-00000015.safetensors"
    newest.write_bytes(newest.read_bytes()[:-3])
    found = saved.newest()
    assert found is not None and found.step == 10 and found.tensors["w"].tolist() == [10, 10]
    assert "x-00000015.safetensors: a damaged checkpoint" in capsys.readouterr().err
    saved.remove()
    assert saved.newest() is None and other.newest() is not None
    assert math.isclose(float(other.newest().tensors["w"]), 1)
