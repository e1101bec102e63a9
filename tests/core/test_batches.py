"""Batches: whatever the user passes becomes (x, labels); sums are signed, exact and the same on many processes."""

from __future__ import annotations

import os
from fractions import Fraction

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from support.processes import together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hf_px.scorers  # noqa: F401  registers them
from hf_px.core.batches import Batch, Batches
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable
from hf_px.core.registry import scorers

X, Y = torch.arange(12.0).view(3, 4), torch.tensor([0, 1, 2])


# reading


@pytest.mark.parametrize(
    "item, labelled",
    [
        ((X, Y), True),
        ([X, Y], True),
        ((X,), False),
        (X, False),
        ({"pixel_values": X, "labels": Y}, True),
        ({"pixel_values": X, "label": Y}, True),
        ({"pixel_values": X}, False),
        (({"pixel_values": X}, Y), True),
        ((X, [0, 1, 2]), True),
    ],
)
def test_takes_what_loaders_give(item, labelled):
    found = Batches([item]).first()
    assert torch.equal(found.x, X)
    assert torch.equal(found.labels, Y) if labelled else found.labels is None
    args, kwargs = found.call_args()
    inside = item[0] if isinstance(item, (tuple, list)) else item
    if isinstance(inside, dict):
        assert args == () and list(kwargs) == ["pixel_values"]
    else:
        assert kwargs == {} and len(args) == 1


def test_a_dict_keeps_what_else_the_model_takes():
    mask = torch.ones(3, 4, dtype=torch.int64)
    found = Batches([{"pixel_mask": mask, "pixel_values": X, "labels": Y, "interpolate": True}]).first()
    other = torch.zeros_like(X)
    args, kwargs = found.call_args(other)
    assert args == () and set(kwargs) == {"pixel_mask", "pixel_values", "interpolate"}
    assert kwargs["pixel_values"] is other
    inputs, labels = found
    assert inputs["pixel_values"] is found.x and labels is found.labels


def test_without_pixel_values_the_first_float_carries_the_images():
    found = Batches([{"ids": torch.ones(3, dtype=torch.int64), "images": X}]).first()
    assert found.key == "images" and torch.equal(found.x, X)


def test_may_be_iterated_again_and_numbers_its_batches():
    loader = DataLoader(TensorDataset(torch.randn(7, 2), torch.arange(7)), batch_size=3)
    batches = Batches(loader)
    for _ in range(2):
        assert [(b.index, len(b.x)) for b in batches] == [(0, 3), (1, 3), (2, 1)]
    assert [b.index for b in batches.share()] == [0, 1, 2]
    inputs, labels = next(iter(batches))
    assert inputs.shape == (3, 2) and labels.tolist() == [0, 1, 2]


def test_images_come_in_the_type_of_the_model():
    batch = Batches([({"pixel_values": X.double(), "scale": X.double()}, Y)], dtype=torch.float32).first()
    assert batch.x.dtype is torch.float32
    assert batch.labels.dtype is torch.int64


def test_row_is_the_first_sample_alone():
    found = Batches([{"pixel_values": X, "pixel_mask": X > 1, "labels": Y, "size": 4}]).first().row()
    assert torch.equal(found.x, X[:1]) and torch.equal(found.labels, Y[:1])
    assert found.others["pixel_mask"].shape == (1, 4) and found.others["size"] == 4


def test_parts_are_the_batch_again_with_what_belongs_to_it():
    batch = Batch(X, Y, {"pixel_mask": Y + 10, "flag": True}, "pixel_values", index=7)
    for values, sizes in ((None, [3]), (12, [3]), (11, [2, 1]), (4, [1, 1, 1]), (1, [1, 1, 1])):
        parts = list(batch.parts(values))
        assert [len(part.x) for part in parts] == sizes
        assert [part.start for part in parts] == [sum(sizes[:i]) for i in range(len(sizes))]
        assert torch.equal(torch.cat([part.x for part in parts]), X)
        assert torch.equal(torch.cat([part.labels for part in parts]), Y)
        assert torch.equal(torch.cat([part.others["pixel_mask"] for part in parts]), Y + 10)
        assert all(part.others["flag"] and part.index == 7 for part in parts)


def test_a_sample_has_the_same_draws_in_a_part_as_in_its_batch():
    def draws(batch):
        return [torch.rand(3, generator=row.seeded(generator)) for row in batch.samples()]

    generator = torch.Generator().manual_seed(3)
    whole = torch.stack(draws(Batch(X, index=1)))
    assert torch.equal(whole, torch.stack([d for part in Batch(X, index=1).parts(8) for d in draws(part)]))
    assert len(whole.unique(dim=0)) == 3


def test_in_parts_sums_the_same_and_counts_each_batch_once():
    ticks = []
    data = Batches([(X, Y), (X + 1, Y)])
    data.tick = lambda: ticks.append(1)
    seen = []

    def contribution(batch):
        seen.append(len(batch.x))
        return {"w": batch.x.sum(0)}

    like = {"w": X[0]}
    assert torch.equal(data.in_parts(8).sum(contribution, like)["w"], data.sum(contribution, like)["w"])
    assert seen == [2, 1, 2, 1, 3, 3]
    assert len(ticks) == 4


@pytest.mark.parametrize(
    "data, error, words",
    [
        (iter([X]), ValueError, "used up after one round"),
        ((b for b in [X]), ValueError, "used up after one round"),
        (X, ValueError, "single batch; put it in a list"),
        ({"pixel_values": X}, ValueError, "single batch; put it in a list"),
    ],
)
def test_refuses_what_cannot_be_read_twice(data, error, words):
    with pytest.raises(error, match=words):
        Batches(data)


@pytest.mark.parametrize(
    "item, error, words",
    [
        ((X, Y, Y), ValueError, "batch 0 has 3 parts"),
        ((), ValueError, "batch 0 has 0 parts"),
        ("images", TypeError, "batch 0 is a str"),
        ((None, Y), TypeError, "batch 0 is a NoneType"),
        (X.to(torch.uint8), TypeError, r"batch 0: inputs are torch\.uint8; scale and convert"),
        ({"pixel_values": X.long()}, ValueError, r"no floating-point tensor among \['pixel_values'\]"),
        (X[:0], ValueError, "batch 0 holds no samples"),
        (X / 0, ValueError, "batch 0: inputs hold nan or inf"),
    ],
)
def test_refuses_a_bad_batch_by_number(item, error, words):
    with pytest.raises(error, match=words):
        Batches([item]).first()


def test_refuses_no_batch():
    with pytest.raises(ValueError, match="`batches` is empty"):
        Batches([]).first()
    with pytest.raises(ValueError, match="`batches` is empty"):
        Batches([]).sum(lambda b: {}, like={})


# draws


def test_each_batch_has_draws_of_its_own():
    generator = torch.Generator().manual_seed(3)
    a, b = Batch(X, index=0), Batch(X, index=1)
    first = torch.rand(4, generator=a.seeded(generator))
    torch.rand(9, generator=generator)  # what others drew does not matter, nor which process asks
    assert torch.equal(first, torch.rand(4, generator=a.seeded(generator)))
    assert not torch.equal(first, torch.rand(4, generator=b.seeded(generator)))
    assert not torch.equal(first, torch.rand(4, generator=a.seeded(torch.Generator().manual_seed(4))))


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**31))
def test_any_seed_and_any_index_will_do(seed, index):
    Batch(X, index=index).seeded(torch.Generator().manual_seed(seed))


# sums


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=6))
def test_sums_keep_their_sign(values):
    batches = Batches([X] * len(values))
    found = batches.sum(
        lambda b: {"a": torch.tensor(values[b.index], dtype=torch.float64)}, like={"a": torch.zeros(2).double()}
    )
    for i in (0, 1):
        exact = sum(Fraction(v[i]) for v in values)
        assert float(found["a"][i]) == pytest.approx(float(exact), rel=1e-12, abs=1e-9)


def test_float32_parts_are_added_in_float64_and_rounded_once():
    """In any order, on any number of processes: 1 + 2^-24 + 2^-24 is 1 in float32, added one by one."""
    parts = [1.0, 2.0**-24, 2.0**-24]
    found = Batches([X] * 3).sum(lambda b: {"a": torch.tensor([parts[b.index]])}, like={"a": torch.zeros(1)})
    assert found["a"].dtype is torch.float32
    assert found["a"].item() == 1 + 2.0**-23


def test_only_what_was_asked_for_is_summed():
    found = Batches([X, X]).sum(lambda b: {"a": torch.ones(1), "b": torch.ones(1)}, like={"a": torch.zeros(1)})
    assert list(found) == ["a"]


@st.composite
def scaled(draw):
    """[(two values near one, exponent)]: what a path sum with a power of two beside it looks like."""
    value = st.floats(0.5, 2) | st.floats(-2, -0.5) | st.just(0.0)
    part = st.tuples(st.tuples(value, value), st.integers(-3000, 3000))
    return draw(st.lists(part, min_size=1, max_size=4))


@given(scaled())
def test_sums_with_a_power_of_two_are_right_up_to_one_factor(parts):
    def contribution(b):
        values, exponent = parts[b.index]
        return {"a": torch.tensor(values, dtype=torch.float64)}, exponent

    like = {"a": torch.zeros(2, dtype=torch.float64)}
    found = Batches([X] * len(parts)).sum(contribution, like=like)["a"].tolist()
    exact = [sum(Fraction(v[i]) * Fraction(2) ** e for v, e in parts) for i in (0, 1)]
    top = max(abs(Fraction(x)) * Fraction(2) ** e for v, e in parts for x in v)
    if not top:
        assert found == [0, 0]
        return
    assert all(abs(f) < float("inf") for f in found)
    # the factor that the larger of the two shows holds for the other, to the precision of the largest term
    big = max((0, 1), key=lambda i: abs(exact[i]))
    if abs(exact[big]) < top / 2**40:
        return  # it cancelled: nothing is left to compare with
    factor = Fraction(found[big]) / exact[big]
    assert factor > 0
    for i in (0, 1):
        assert abs(Fraction(found[i]) - factor * exact[i]) <= factor * top * Fraction(1, 2**48)
    if Fraction(2) ** -900 < top < Fraction(2) ** 900:
        assert abs(factor - 1) < Fraction(1, 2**40)  # exactly right where float64 holds it


def test_once_is_the_values_themselves():
    assert Batches.once({"a": torch.tensor([3.0])}, 2)["a"].item() == 12
    big = Batches.once({"a": torch.tensor([1.0, 2.0])}, 5000)["a"]
    assert torch.isfinite(big).all() and big[1] == 2 * big[0]


# many processes


def worker(folder):
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    data = [(torch.randn(6, 4), torch.randint(3, (6,))) for _ in range(3)]
    found = {}
    for count in (3, 1):  # with one batch, the second process has none
        batches = Batches(data[:count])
        found[f"share {count}"] = torch.tensor([b.index for b in batches.share()])

        def values(b):
            return {"a": torch.tensor([b.x.sum(), -b.x.sum()]).double()}, -40 * b.index

        found[f"sum {count}"] = batches.sum(values, like={"a": torch.zeros(2)})["a"]
        mask = Mask.ones(prunable(model))
        for name in ("snip", "force", "grasp", "ntk-sap", "prospr", "random"):
            g = torch.Generator().manual_seed(0)
            scores = scorers[name].score(model, mask.weights(model), batches, generator=g)
            found.update({f"{name} {count} {n}": s for n, s in scores.items()})
    try:
        Batches([]).sum(lambda b: {}, like={"a": torch.zeros(2)})
    except ValueError as error:
        found["empty"] = torch.tensor("`batches` is empty" in str(error))
    torch.save(found, folder / f"{world}-{rank}.pt")
    if dist.is_initialized():
        dist.barrier()  # gloo aborts a process whose peer has hung up first
        dist.destroy_process_group()


def test_two_processes_give_what_one_gives(tmp_path):
    for world in (1, 2):
        together(world, worker, tmp_path)
    alone, first, second = (torch.load(tmp_path / f"{name}.pt") for name in ("1-0", "2-0", "2-1"))
    assert alone["share 3"].tolist() == [0, 1, 2]
    assert first["share 3"].tolist() == [0, 2] and second["share 3"].tolist() == [1]  # whole, and each once
    assert first["share 1"].tolist() == [0] and second["share 1"].tolist() == []
    assert alone.keys() == first.keys() == second.keys() and "empty" in alone
    for key, value in alone.items():
        if not key.startswith("share"):
            assert torch.equal(first[key], second[key]), key
            # added in another order, so the last bit of float64 may differ; ranks do not
            torch.testing.assert_close(first[key].double(), value.double(), rtol=1e-12, atol=1e-15, msg=key)
