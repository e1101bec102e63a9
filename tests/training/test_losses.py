"""Losses: distillation by hand, pixels without a label, and parts of a step that weigh the same as the whole step."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from support.plans import plans

from hf_px.core.forward import IGNORE
from hf_px.training.losses import distillation_loss, label_counts, part_weights
from hf_px.training.plan import Plan


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


def test_distillation_at_its_ends_and_between() -> None:
    z, t = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)), torch.randn(6, 5)
    y = torch.arange(6) % 5
    plain = F.cross_entropy(z, y)
    alone = distillation_loss(z, y, None, weight=0.7, temperature=2.0, smoothing=0.0)
    assert float(alone) == pytest.approx(float(plain), rel=1e-6)
    p, q = (t / 3).softmax(1), (z / 3).softmax(1)
    kl = float((p * (p.log() - q.log())).sum(1).mean() * 9)
    found = distillation_loss(z, y, t, weight=0.25, temperature=3.0, smoothing=0.0)
    assert float(found) == pytest.approx(0.75 * float(plain) + 0.25 * kl, rel=1e-5)
    assert float(distillation_loss(z, y, z, weight=1.0, temperature=2.0, smoothing=0.0)) == pytest.approx(0, abs=1e-6)


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
        mine = distillation_loss(z, y, answers, weight=0.3, temperature=2.0, smoothing=smooth)
        theirs = distillation_loss(flat, labels, others, weight=0.3, temperature=2.0, smoothing=smooth)
        assert float(mine) == pytest.approx(float(theirs), rel=1e-6)
    assert label_counts(y).tolist() == [int((mask != IGNORE).sum()) for mask in y]
    unlabelled = torch.full_like(y, IGNORE)
    nothing = distillation_loss(z.requires_grad_(), unlabelled, t, weight=0.3, temperature=2.0, smoothing=smooth)
    nothing.backward()
    assert float(nothing.detach()) == 0 and not z.grad.any()


@pytest.mark.parametrize(("processes", "accumulation"), [(1, 1), (1, 4), (2, 1), (2, 2), (4, 1)])
def test_cut_into_parts_the_gradient_is_that_of_the_whole_step(processes: int, accumulation: int) -> None:
    """However labelled pixels are spread over processes and parts; one part has none at all."""
    z, y, _ = masked(12)
    y[:3] = IGNORE
    z.requires_grad_()
    (whole,) = torch.autograd.grad(distillation_loss(z, y, None, weight=0, temperature=1, smoothing=0), z)
    plan = Plan(12, 12, 1, processes=processes, accumulation=accumulation)
    parts = torch.arange(12).tensor_split(processes * accumulation)
    total = torch.zeros_like(whole)
    for rank in range(processes):
        mine = parts[rank::processes]
        others = int(label_counts(y).sum()) - sum(int(label_counts(y[part]).sum()) for part in mine)
        weights = part_weights(Alone(others), plan, 0, [y[part] for part in mine])
        for part, weight in zip(mine, weights):
            loss = distillation_loss(z[part], y[part], None, weight=0, temperature=1, smoothing=0)
            loss = loss * weight / accumulation / processes  # as accelerate and DDP divide
            total += torch.autograd.grad(loss, z)[0]
    torch.testing.assert_close(total, whole, rtol=1e-5, atol=1e-12)
