"""Allocation: exact counts, ties by name and position, nested masks, for every scope and any scores."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from hf_px.core.allocate import (  # fmt: skip
    SCHEDULES,
    Global,
    NofM,
    PerLayer,
    apportion,
    best,
    budget,
    exponential,
    linear,
    one_shot,
    scope,
)
from hf_px.core.mask import Mask

densities = st.floats(0.01, 1.0)
ties = st.integers(-2, 2)  # few values: most scores are equal


small_shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3)


@st.composite
def scored(draw, shapes=small_shapes):
    """{name: scores} in an order that is not that of the names."""
    names = draw(st.permutations([f"layer{i}.weight" for i in range(draw(st.integers(1, 4)))]))
    found = {}
    for name in names:
        shape = draw(shapes)
        n = math.prod(shape)
        numbers = draw(st.lists(ties, min_size=n, max_size=n))
        found[name] = torch.tensor(numbers, dtype=torch.float32).view(shape)
    return found


@st.composite
def within(draw, scores):
    """A mask of the same tensors."""
    bits = {}
    for name, s in scores.items():
        numbers = draw(st.lists(st.booleans(), min_size=s.numel(), max_size=s.numel()))
        bits[name] = torch.tensor(numbers).view(s.shape)
    return Mask(bits)


def ranking(scores, mask):
    """(name, position) of all that may be kept: best first, equals by name, then position."""
    flat = [
        (-value, name, i)
        for name, s in scores.items()
        for i, (value, free) in enumerate(zip(s.reshape(-1).tolist(), mask.bits[name].reshape(-1).tolist()))
        if free
    ]
    return [(name, i) for _, name, i in sorted(flat)]


def kept_set(mask):
    return {(name, i) for name, b in mask.bits.items() for i in b.reshape(-1).nonzero().view(-1).tolist()}


SCOPES = {"global": Global(), "layer": PerLayer(), "erk": PerLayer(erk=True)}


# best


@given(st.lists(ties, min_size=1, max_size=30), st.integers(-1, 35))
def test_best_takes_the_highest_and_the_first_of_equals(values, count):
    found = best(torch.tensor(values, dtype=torch.float32), count)
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))[: max(count, 0)]
    assert found.dtype is torch.bool
    assert set(found.nonzero().view(-1).tolist()) == set(order)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_best_takes_any_floating_type(dtype):
    found = best(torch.tensor([1, 3, 2, 3], dtype=dtype), 2)
    assert found.tolist() == [False, True, False, True]


@pytest.mark.parametrize("total, density, kept", [(270_896, 0.018, 4876), (10, 0.25, 2), (10, 1.0, 10), (3, 1e-9, 0)])
def test_budget_rounds(total, density, kept):
    assert budget(total, density) == kept == round(density * total)


# every scope


@pytest.mark.parametrize("name", SCOPES)
@given(data=st.data(), density=densities)
def test_counts_are_exact_and_nothing_pruned_returns(name, data, density):
    scores = data.draw(scored())
    inside = data.draw(within(scores))
    kept = SCOPES[name](scores, density, inside)
    total = sum(s.numel() for s in scores.values())
    assert kept.kept == min(round(density * total), inside.kept)
    assert kept & inside == kept
    assert {n: b.shape for n, b in kept.bits.items()} == {n: s.shape for n, s in scores.items()}


@pytest.mark.parametrize("name", SCOPES)
@given(data=st.data(), density=densities)
def test_the_best_of_a_layer_are_kept_and_the_first_of_equals(name, data, density):
    scores = data.draw(scored())
    inside = data.draw(within(scores))
    kept = SCOPES[name](scores, density, inside)
    if name == "global":
        assert kept_set(kept) == set(ranking(scores, inside)[: kept.kept])
    for layer, s in scores.items():
        count = int(kept.bits[layer].sum())
        order = ranking({layer: s}, Mask({layer: inside.bits[layer]}))
        assert kept_set(Mask({layer: kept.bits[layer]})) == set(order[:count])


@pytest.mark.parametrize("name", SCOPES)
@given(data=st.data(), density=densities)
def test_the_order_of_the_tensors_changes_nothing(name, data, density):
    scores = data.draw(scored())
    inside = data.draw(within(scores))
    other = {n: scores[n].clone() for n in sorted(scores, reverse=True)}
    a, b = (SCOPES[name](s, density, inside) for s in (scores, other))
    assert a == b and a.digest() == b.digest()


@pytest.mark.parametrize("name", SCOPES)
@given(data=st.data(), density=densities, floor=st.integers(0, 4))
def test_no_layer_falls_below_its_floor(name, data, density, floor):
    scores = data.draw(scored())
    inside = data.draw(within(scores))
    floors = {n: min(floor, int(b.sum())) for n, b in inside.bits.items()}
    total = sum(s.numel() for s in scores.values())
    count = min(round(density * total), inside.kept)
    assume(sum(floors.values()) <= count)
    kept = SCOPES[name](scores, density, inside, dict.fromkeys(scores, floor))
    assert kept.kept == count and kept & inside == kept
    for layer, s in scores.items():
        n = int(kept.bits[layer].sum())
        assert n >= floors[layer]
        order = ranking({layer: s}, Mask({layer: inside.bits[layer]}))
        assert kept_set(Mask({layer: kept.bits[layer]})) == set(order[:n])


@pytest.mark.parametrize("name", SCOPES)
@given(data=st.data(), density=densities, rounds=st.integers(1, 6), law=st.sampled_from(sorted(SCHEDULES)))
def test_masks_are_nested_over_rounds_and_end_at_the_budget(name, data, density, rounds, law):
    scores = data.draw(scored())
    mask = Mask.ones(scores)
    for t in range(1, rounds + 1):
        fresh = {n: torch.roll(s.reshape(-1), t).view(s.shape) for n, s in scores.items()}
        after = SCOPES[name](fresh, SCHEDULES[law](t, rounds, density), mask)
        assert after & mask == after
        mask = after
    assert mask.kept == round(density * mask.total)


@pytest.mark.parametrize("name", SCOPES)
def test_scores_are_not_touched(name):
    scores = {"a": torch.tensor([3.0, 1.0, 2.0], requires_grad=True), "b": torch.tensor([0.5])}
    before = {n: s.detach().clone() for n, s in scores.items()}
    within = Mask({"a": torch.tensor([True, True, False]), "b": torch.tensor([True])})
    SCOPES[name](scores, 0.5, within, {"a": 1, "b": 1})
    assert all(torch.equal(scores[n].detach(), before[n]) for n in scores)


@pytest.mark.parametrize("name", [*SCOPES, "1:2"])
def test_layers_may_differ_in_type(name):
    """float64 where several batches were added, bfloat16 where the weights are."""
    scores = {"a": torch.tensor([[3.0, 1.0]], dtype=torch.float64), "b": torch.tensor([[2.0, 0.5]]).bfloat16()}
    kept = scope(name)(scores, 0.5, Mask.ones(scores))
    assert kept_set(kept) == {("a", 0), ("b", 0)}


@pytest.mark.parametrize("name", [*SCOPES, "1:2"])
def test_memory_layout_does_not_matter(name):
    straight = torch.arange(24.0).view(2, 4, 3)[:, torch.randperm(4, generator=torch.Generator().manual_seed(0))]
    strange = straight.transpose(0, 2).contiguous().transpose(0, 2)
    assert not strange.is_contiguous()
    a, b = (scope(name)({"w": s}, 0.5, Mask.ones({"w": s})) for s in (straight, strange))
    assert a == b and a.digest() == b.digest()


def test_negative_scores_are_scores():
    """GraSP's are signed: the least negative is better than the most."""
    kept = Global()({"a": torch.tensor([-3.0, -1.0, -2.0])}, 1 / 3, Mask.ones({"a": torch.ones(3)}))
    assert kept.bits["a"].tolist() == [False, True, False]


# shares by layer


@given(data=st.data(), density=densities)
def test_layer_gives_every_layer_its_density(data, density):
    scores = data.draw(scored())
    kept = PerLayer()(scores, density, Mask.ones(scores))
    for name, s in scores.items():
        assert abs(int(kept.bits[name].sum()) - density * s.numel()) < 1 + 0.5  # own rounding, and that of the sum


def erk_densities(shapes, density):
    """Evci et al.: ε (Σ dims / Π dims); while a layer would pass 1 it stays dense, and ε is solved for the rest."""
    dense = set()
    budget = density * sum(math.prod(s) for s in shapes.values())
    while True:
        rest = [n for n in shapes if n not in dense]
        left = budget - sum(math.prod(shapes[n]) for n in dense)
        raw = {n: sum(shapes[n]) / math.prod(shapes[n]) for n in rest}
        epsilon = left / sum(raw[n] * math.prod(shapes[n]) for n in rest) if rest else 0
        over = {n for n in rest if epsilon * raw[n] > 1}
        if not over:
            return {n: 1.0 if n in dense else epsilon * raw[n] for n in shapes}
        dense |= over


@given(data=st.data(), densities=st.lists(densities, min_size=1, max_size=4), erk=st.booleans())
def test_weights_set_apart_keep_the_density_of_the_others_in_every_round(data, densities, erk):
    scores = data.draw(scored())
    name = sorted(scores)[0]
    size = scores[name].numel()
    apart = torch.tensor(data.draw(st.lists(st.booleans(), min_size=size, max_size=size))).view(scores[name].shape)
    split, plain = PerLayer(erk=erk, apart={name: apart}), PerLayer(erk=erk)
    mask = other = Mask.ones(scores)
    for density in sorted(densities, reverse=True):
        before, mask, other = mask, split(scores, density, mask), plain(scores, density, other)
        for tensor, bits in mask.bits.items():
            assert not (bits & ~before.bits[tensor]).any()
            assert bits.sum() == other.bits[tensor].sum()
        kept = mask.bits[name]
        assert abs(int(kept[apart].sum()) - int(kept.sum()) * int(apart.sum()) / apart.numel()) <= 0.5
        for group in (apart, ~apart):
            inside = scores[name][group & kept], scores[name][group & before.bits[name] & ~kept]
            assert not len(inside[0]) or not len(inside[1]) or inside[0].min() >= inside[1].max()


@given(data=st.data(), density=densities)
def test_erk_meets_the_published_densities(data, density):
    scores = data.draw(scored(shapes=st.lists(st.integers(1, 8), min_size=2, max_size=4)))
    kept = PerLayer(erk=True)(scores, density, Mask.ones(scores))
    wanted = erk_densities({n: tuple(s.shape) for n, s in scores.items()}, density)
    for name, s in scores.items():
        # one for the layer's own rounding; the rounded total moves each share by less than half a weight
        assert abs(int(kept.bits[name].sum()) - wanted[name] * s.numel()) < 1.5 + 1e-6


def test_erk_on_resnet20_shapes():
    shapes = {"conv": (16, 3, 3, 3), "mid": (32, 32, 3, 3), "deep": (64, 64, 3, 3), "fc": (10, 64)}
    scores = {n: torch.rand(s, generator=torch.Generator().manual_seed(0)) for n, s in shapes.items()}
    kept = PerLayer(erk=True)(scores, 0.1, Mask.ones(scores))
    wanted = erk_densities(shapes, 0.1)
    assert kept.kept == round(0.1 * kept.total)
    assert wanted["conv"] == 1.0  # small layers stay dense
    for name, bits in kept.bits.items():
        assert abs(int(bits.sum()) - wanted[name] * bits.numel()) < 1.5


# apportion


@st.composite
def shares(draw):
    k = draw(st.integers(1, 6))
    weights = draw(st.lists(st.integers(1, 1000), min_size=k, max_size=k))
    rooms = draw(st.lists(st.integers(0, 200), min_size=k, max_size=k))
    floors = [draw(st.integers(0, room)) for room in rooms]
    total = draw(st.integers(sum(floors), sum(rooms)))
    return weights, rooms, total, floors


@given(shares())
@example(([1, 1, 1], [1, 1, 1], 2, [0, 0, 0]))
@example(([1000, 1], [0, 200], 200, [0, 0]))
@example(([1], [0], 0, [0]))
def test_apportion_adds_up_within_bounds(case):
    weights, rooms, total, floors = case
    counts = apportion(weights, rooms, total, floors)
    assert sum(counts) == total
    assert all(isinstance(c, int) and low <= c <= high for c, low, high in zip(counts, floors, rooms))


@given(shares())
def test_apportion_is_proportional_where_no_bound_bites(case):
    weights, rooms, total, floors = case
    counts = apportion(weights, rooms, total, floors)
    free = [i for i in range(len(weights)) if floors[i] < counts[i] < rooms[i]]
    for i in free:
        for j in free:  # both are λ·w to within one weight
            assert abs(counts[i] / weights[i] - counts[j] / weights[j]) <= 1 / weights[i] + 1 / weights[j] + 1e-6


def test_apportion_gives_the_largest_remainders_the_rest():
    # quotas 3.5, 2.1, 1.4: the whole parts make 6, the seventh goes to the largest remainder
    assert apportion([50, 30, 20], [9, 9, 9], 7, [0, 0, 0]) == [4, 2, 1]
    # equal remainders: the first
    assert apportion([1, 1, 1], [9, 9, 9], 4, [0, 0, 0]) == [2, 1, 1]


def test_apportion_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="cannot share 2 weights among layers that must keep 3"):
        apportion([1, 1], [5, 5], 2, [2, 1])
    with pytest.raises(ValueError, match="cannot share 20 weights"):
        apportion([1, 1], [5, 5], 20, [0, 0])


@given(densities, st.integers(1, 6))
def test_apportion_never_asks_for_more_than_the_last_round_left(density, rounds):
    """The Alabama paradox: with remainders alone, a smaller total may give a layer one weight more."""
    weights = [5, 3, 3, 1]
    rooms = list(weights)
    for t in range(1, rounds + 1):
        counts = apportion(weights, rooms, round(sum(weights) * density ** (t / rounds)), [0] * 4)
        assert all(c <= room for c, room in zip(counts, rooms))
        rooms = counts


# n:m


@st.composite
def grouped(draw):
    m = draw(st.integers(2, 5))
    n = draw(st.integers(1, m - 1))
    shape = (draw(st.integers(1, 3)), m * draw(st.integers(1, 3)), *draw(st.lists(st.integers(1, 3), max_size=2)))
    size = math.prod(shape)
    numbers = draw(st.lists(ties, min_size=size, max_size=size))
    return n, m, torch.tensor(numbers, dtype=torch.float32).view(shape)


def groups(tensor, m):
    """{(output, kernel position, group): values along the input dimension}"""
    found = {}
    for out in range(tensor.shape[0]):
        for rest in np.ndindex(*tensor.shape[2:]):
            line = [tensor[(out, i, *rest)].item() for i in range(tensor.shape[1])]
            for g in range(0, len(line), m):
                found[(out, rest, g)] = line[g : g + m]
    return found


@given(grouped())
def test_n_of_m_keeps_the_best_n_of_each_group(case):
    n, m, score = case
    law = scope(f"{n}:{m}")
    law.check({"w": score.shape}, n / m)
    kept = law({"w": score}, n / m, Mask.ones({"w": score}))
    assert kept.kept == score.numel() * n // m
    values, bits = groups(score, m), groups(kept.bits["w"], m)
    for where, line in values.items():
        order = sorted(range(m), key=lambda i: (-line[i], i))[:n]
        assert [i for i in range(m) if bits[where][i]] == sorted(order)


@given(grouped(), st.integers(2, 6), st.sampled_from(sorted(SCHEDULES)))
def test_n_of_m_is_nested_over_rounds_and_ends_at_n_of_m(case, rounds, law):
    n, m, score = case
    mask = Mask.ones({"w": score})
    for t in range(1, rounds + 1):
        moved = torch.roll(score.reshape(-1), t).view(score.shape)
        after = NofM(n, m)({"w": moved}, SCHEDULES[law](t, rounds, n / m), mask)
        assert after & mask == after
        counts = {sum(line) for line in groups(after.bits["w"], m).values()}
        assert len(counts) == 1 and counts.pop() >= n  # all groups thin alike
        mask = after
    assert mask.kept == score.numel() * n // m


def test_n_of_m_runs_along_the_inputs_of_a_convolution():
    score = torch.zeros(1, 4, 1, 2)
    score[0, :, 0, 0] = torch.tensor([4.0, 3.0, 2.0, 1.0])
    score[0, :, 0, 1] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    kept = NofM(2, 4)({"w": score}, 0.5, Mask.ones({"w": score})).bits["w"]
    assert kept[0, :, 0, 0].tolist() == [True, True, False, False]
    assert kept[0, :, 0, 1].tolist() == [False, False, True, True]


def test_n_of_m_says_what_it_cannot_do():
    shapes = {"stem": torch.Size((16, 3, 3, 3)), "body": torch.Size((16, 16, 3, 3))}
    with pytest.raises(ValueError, match=r"`scope` 2:4: stem has 3 inputs, which 4 does not divide .*`exclude` stem"):
        NofM(2, 4).check(shapes, 0.5)
    with pytest.raises(ValueError, match=r"`scope` 2:4 means sparsity 0\.5, not 0\.9"):
        NofM(2, 4).check({"body": shapes["body"]}, 0.1)
    for n, m in ((4, 4), (0, 4), (5, 4)):
        with pytest.raises(ValueError, match=f"`scope` {n}:{m}: need 0 < n < m"):
            NofM(n, m).check(shapes, 0.5)


# names


def test_scope_reads_what_the_user_writes():
    assert scope("global") == Global()
    assert scope("layer") == PerLayer()
    assert scope("erk") == PerLayer(erk=True)
    assert scope("2:4") == NofM(2, 4)
    for wrong in ("globally", "2:", "a:b", "-2:4", ""):
        with pytest.raises(ValueError, match=r"`scope` .* is unknown; there are global, layer, erk, channel and n:m"):
            scope(wrong)


# schedules

final_densities = st.floats(1e-4, 1.0)
rounds = st.integers(1, 200)


def test_the_three():
    assert dict(SCHEDULES) == {"exponential": exponential, "linear": linear, "one-shot": one_shot}


@given(density=final_densities, total=rounds, name=st.sampled_from(sorted(SCHEDULES)))
def test_falls_to_the_density_and_ends_there_exactly(density, total, name):
    law = SCHEDULES[name]
    steps = [law(t, total, density) for t in range(1, total + 1)]
    assert steps[-1] == density  # exactly: the count of survivors is rounded from it
    assert all(a >= b for a, b in pairwise([1.0, *steps]))


@given(density=final_densities, total=rounds)
def test_exponential_removes_the_same_part_every_round(density, total):
    steps = [1.0, *(exponential(t, total, density) for t in range(1, total + 1))]
    for a, b in pairwise(steps):
        assert b / a == pytest.approx(math.exp(math.log(density) / total))


@given(density=final_densities, total=rounds)
def test_linear_removes_the_same_number_every_round(density, total):
    steps = [1.0, *(linear(t, total, density) for t in range(1, total + 1))]
    for a, b in pairwise(steps):
        assert a - b == pytest.approx((1 - density) / total, abs=1e-12)


def test_one_shot_is_there_at_once():
    assert [one_shot(t, 3, 0.1) for t in (1, 2, 3)] == [0.1, 0.1, 0.1]


def test_the_papers_first_and_last_round():
    assert exponential(1, 100, 0.018) == pytest.approx(0.9606224)  # 0.018^(1/100)
    assert exponential(100, 100, 0.018) == 0.018
