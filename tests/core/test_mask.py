"""Mask: bits by name, immutable, with a digest that any machine repeats."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import pickle

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import hf_px
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable

SHAPES = {"a.weight": (2, 3), "b.weight": (4,), "c": (1, 2, 2)}


@st.composite
def masks(draw):
    return Mask(
        {
            name: torch.tensor(draw(st.lists(st.booleans(), min_size=n, max_size=n))).view(shape)
            for name, shape in SHAPES.items()
            for n in [torch.Size(shape).numel()]
        }
    )


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))


def some(model, seed=0):
    g = torch.Generator().manual_seed(seed)
    return Mask({n: torch.rand(w.shape, generator=g) < 0.5 for n, w in prunable(model).items()})


@given(masks())
def test_counts(mask):
    ones = sum(sum(b.reshape(-1).tolist()) for b in mask.bits.values())
    assert (mask.kept, mask.total) == (ones, 14)
    assert mask.density == ones / 14
    assert mask.density + mask.sparsity == pytest.approx(1)
    assert f"{ones} of 14 kept" in repr(mask)


@given(masks(), masks())
def test_and_is_the_intersection(a, b):
    both = a & b
    for name in SHAPES:
        pairs = zip(a.bits[name].reshape(-1).tolist(), b.bits[name].reshape(-1).tolist())
        assert both.bits[name].reshape(-1).tolist() == [p and q for p, q in pairs]
    assert both == b & a
    assert both & a == both
    assert a & a == a
    assert a & Mask.ones(a.bits) == a


@given(masks(), masks())
def test_digests_are_equal_where_masks_are(a, b):
    assert (a.digest() == b.digest()) == (a == b)
    backwards = Mask(dict(reversed(a.bits.items())))
    assert backwards == a and backwards.digest() == a.digest() and hash(backwards) == hash(a)
    assert len({a, backwards}) == 1


def test_every_bit_name_and_shape_is_in_the_digest():
    mask = Mask({"a": torch.zeros(3, 3, dtype=torch.bool)})
    seen = {mask.digest(), Mask({"b": mask.bits["a"]}).digest(), Mask({"a": mask.bits["a"].view(9)}).digest()}
    seen.add(Mask({"a": mask.bits["a"].view(9, 1)}).digest())
    seen.add(Mask({"a": torch.zeros(16, dtype=torch.bool)}).digest())  # packs into as many bytes
    for i in range(9):
        bits = torch.zeros(9, dtype=torch.bool)
        bits[i] = True
        seen.add(Mask({"a": bits.view(3, 3)}).digest())
    assert len(seen) == 14


def test_the_digest_is_the_same_on_any_machine():
    """Name, shape and bits packed from the lowest, in order of name; a change here would orphan stored digests."""
    mask = Mask({"b": torch.tensor([[True, False, True]]), "a": torch.tensor([False] * 8 + [True])})
    written = b"a\0(9,)\0" + bytes([0, 1]) + b"b\0(1, 3)\0" + bytes([0b101])
    assert mask.digest() == hashlib.sha256(written).hexdigest()


def test_the_digest_does_not_see_memory_layout():
    bits = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    strange = bits.t().contiguous().t()
    assert not strange.is_contiguous()
    assert Mask({"a": strange}).digest() == Mask({"a": bits}).digest()


def test_is_immutable():
    source = {"a": torch.ones(2, dtype=torch.bool)}
    mask = Mask(source)
    source["b"] = source["a"]
    assert list(mask.bits) == ["a"]
    with pytest.raises(TypeError):
        mask.bits["b"] = source["a"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        mask.bits = {}


def test_is_not_equal_to_other_things():
    mask = Mask({"a": torch.ones(2, dtype=torch.bool)})
    assert mask != "mask"
    assert mask != Mask({"a": torch.ones(2, 1, dtype=torch.bool)})
    assert mask != Mask({"b": torch.ones(2, dtype=torch.bool)})
    with pytest.raises(TypeError):
        mask & 1


def test_wants_bool():
    with pytest.raises(TypeError, match=r"a\.weight: a mask has bool tensors, not torch\.float32"):
        Mask({"a.weight": torch.ones(2)})


def test_and_names_what_does_not_fit():
    a = Mask({"x": torch.ones(2, dtype=torch.bool)})
    with pytest.raises(ValueError, match="y is in one only"):
        a & Mask({"x": a.bits["x"], "y": a.bits["x"]})
    with pytest.raises(ValueError, match=r"x: masks are \(2,\) and \(3,\)"):
        a & Mask({"x": torch.ones(3, dtype=torch.bool)})


def test_apply_zeroes_in_place_and_touches_nothing_else():
    model = net()
    mask = some(model)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    assert mask.apply_(model) is model
    for name, tensor in model.state_dict().items():
        bits = mask.bits.get(name, torch.ones_like(tensor, dtype=torch.bool))
        assert torch.equal(tensor[bits], before[name][bits])
        assert not tensor[~bits].any()
        assert not torch.signbit(tensor[~bits]).any()  # 0, not -0
    assert all(p is parameters[n] and p.requires_grad for n, p in model.named_parameters())


def test_apply_removes_a_pruned_nan():
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, float("nan"))
    Mask({"weight": torch.tensor([[False, True]])}).apply_(model)
    assert model.weight[0, 0] == 0 and torch.isnan(model.weight[0, 1])


def test_weights_are_masked_copies_and_remember_the_mask():
    model = net()
    nn.init.zeros_(model[2].weight)
    mask = some(model)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    weights = mask.weights(model)
    assert weights.mask is mask  # a kept weight may be zero: M cannot be read off θ ⊙ M
    assert list(weights) == list(mask.bits) and len(weights) == len(mask.bits)
    for name, w in weights.items():
        assert torch.equal(w, torch.where(mask.bits[name], before[name], 0))
        assert not w.requires_grad
        w.fill_(7)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_a_mask_for_another_model_says_so():
    model = net()
    with pytest.raises(ValueError, match=r"9\.weight: in the mask, but the model has no such parameter"):
        Mask({"9.weight": torch.ones(1, dtype=torch.bool)}).apply_(model)
    with pytest.raises(ValueError, match=r"2\.weight: mask is \(5, 2\), weight is \(2, 2\); was the head resized"):
        Mask({"2.weight": torch.ones(5, 2, dtype=torch.bool)}).weights(model)


def test_a_tied_tensor_answers_to_each_of_its_names():
    model = net()
    model[2].weight = nn.Parameter(torch.ones(2, 2))
    model.append(nn.Linear(2, 2))
    model[3].weight = model[2].weight
    Mask({"3.weight": torch.zeros(2, 2, dtype=torch.bool)}, excluded=["0.weight"]).apply_(model)
    assert not model[2].weight.any()


def test_a_mask_can_be_copied_and_sent_to_another_process():
    """A transformers model carries its mask along, and people copy models."""
    mask = Mask({"w": torch.tensor([True, False])})
    for other in (copy.copy(mask), copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
        assert other == mask and other is not mask


@given(masks())
def test_kept_is_the_number_of_bits_and_keeps_all_is_true_if_none_is_missing(mask):
    bits = [bit for tensor in mask.bits.values() for bit in tensor.flatten().tolist()]
    assert mask.kept == sum(bits)
    assert mask.keeps_all == all(bits)
    assert Mask.ones(mask.bits).keeps_all


def test_a_mask_names_every_prunable_tensor_or_leaves_it_out_on_purpose() -> None:
    small, large = timm.create_model("resnet18", num_classes=2), timm.create_model("resnet34", num_classes=2)
    mask = hf_px.prune(small, "magnitude", sparsity=0.5, progress=False)
    match = r"^layer1.2.conv1.weight, .*: 16 prunable tensors of this ResNet are not in the mask; is it another model's"
    for use in (mask.apply_, lambda model: hf_px.Ticket(model, mask)):
        with pytest.raises(ValueError, match=match):
            use(large)
    mask.apply_(small)
    excluded = hf_px.prune(large, "magnitude", sparsity=0.5, exclude=["conv1.weight"], progress=False)
    assert excluded.excluded == ("conv1.weight",) and "conv1.weight" not in excluded.bits
    for copied in (excluded, excluded.to("cpu"), copy.deepcopy(excluded), excluded & excluded):
        copied.apply_(large)
    by_hand = hf_px.Mask({"fc.weight": large.fc.weight > 0})
    with pytest.raises(ValueError, match="36 prunable tensors"):
        by_hand.apply_(large)
    hf_px.Mask(by_hand.bits, excluded=list(prunable(large))).apply_(large)
