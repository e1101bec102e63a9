"""Magnitude, SNIP and GraSP against numbers that hf_px did not compute."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from support.reference_net import (
    SMALL,
    needs_reference,
    reference_batch,
    reference_net,
    reference_numbers,
    small_reference,
)

import hf_px.scorers  # noqa: F401  registers them
from hf_px.core.allocate import Global
from hf_px.core.batches import Batches
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable
from hf_px.core.registry import scorers


def scores_of(name, net, batches):
    mask = Mask.ones(prunable(net))
    return scorers[name].score(net, mask.weights(net), Batches(batches), generator=torch.Generator().manual_seed(0))


def flat(scores):
    return torch.cat([scores[name].reshape(-1).double() for name in sorted(scores)])


@needs_reference
@pytest.mark.parametrize(
    "name, which", [("magnitude", "released_Mag"), ("snip", "released_SNIP"), ("grasp", "released_GraSP")]
)
def test_resnet20_matches_the_released_numbers(name, which):
    net = reference_net()
    mine = scores_of(name, net, [reference_batch()])
    theirs, mask = reference_numbers(which)
    assert mine.keys() == theirs.keys()
    a, b = flat(mine), flat(theirs)
    factor = float(a @ b / (a @ a))
    # they divide by a sum of scores: one positive factor for all layers, so a flipped sign shows
    assert factor > 0
    # 1e-6 on the machine where this was written; a ReLU at the edge that falls the other way costs 1e-3
    assert float((factor * a - b).norm() / b.norm()) < 5e-3
    for layer in mine:
        gap = factor * mine[layer].double() - theirs[layer].double()
        assert float(gap.norm() / theirs[layer].double().norm()) < 1e-2, layer
    theirs = Mask(mask)
    assert theirs.kept == 4877  # they remove int(0.982 n), we keep round(0.018 n) = 4876
    ours = Global()(mine, 0.018, Mask.ones(prunable(net)))
    assert ours.kept == 4876
    common = (ours & theirs).kept
    assert common / (ours.kept + theirs.kept - common) > 0.99


@pytest.mark.parametrize("name", ["magnitude", "snip", "grasp"])
def test_small_network_matches_the_extract(name):
    net, batches, numbers = small_reference()
    mine = scores_of(name, net, batches)
    assert mine.keys() == numbers[name].keys()
    for layer, theirs in numbers[name].items():
        assert float(theirs.abs().max()) > 0
        torch.testing.assert_close(mine[layer], theirs, rtol=1e-9, atol=1e-12 * float(flat(numbers[name]).abs().max()))


def test_the_extract_is_what_its_script_makes():
    spec = importlib.util.spec_from_file_location("make_reference", SMALL.with_name("make_reference.py"))
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    state, x, y, stored = script.load()
    assert stored.keys() == script.METHODS.keys()
    for method, score in script.METHODS.items():
        for layer, value in score(state, x, y).items():
            torch.testing.assert_close(value.detach(), stored[method][layer], rtol=1e-9, atol=1e-18)
    assert SMALL.stat().st_size < 200_000
