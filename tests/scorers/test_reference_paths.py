"""SynFlow, SynFlow-L2 and both PX variants against numbers that hf_px did not compute."""

from __future__ import annotations

import pytest
import torch
from support.reference_net import needs_reference, reference_batch, reference_net, reference_numbers, small_reference

import hf_px
from hf_px.core.mask import Mask


def gap(mine: dict, theirs: dict) -> float:
    """Relative distance after fitting one positive factor: path scores are defined up to one."""
    a = torch.cat([mine[name].reshape(-1).double() for name in theirs])
    b = torch.cat([theirs[name].reshape(-1).double() for name in theirs])
    factor = float(a @ b / (b @ b))
    assert factor > 0
    return float((a - factor * b).norm() / (factor * b).norm())


def jaccard(ours: Mask, theirs: Mask) -> float:
    common = (ours & theirs).kept
    return common / (ours.kept + theirs.kept - common)


@pytest.mark.parametrize("which", ["synflow", "synflow-l2", "px", "px running", "px-path"])
def test_small_network_matches_the_extract(which):
    net, batches, numbers = small_reference()
    name, _, norm = which.partition(" ")
    mine = hf_px.score(net, name, batches, **({"norm": norm} if norm else {}))
    assert mine.keys() == numbers[which].keys()
    for layer, theirs in numbers[which].items():
        assert float(theirs.max()) > 0
        torch.testing.assert_close(mine[layer], theirs, rtol=1e-9, atol=1e-12 * float(theirs.max()))


@needs_reference
@pytest.mark.parametrize(
    ("which", "scorer", "options", "tolerance"),
    [
        ("released_SynFlow", "synflow", {}, 1e-6),
        ("synflowl2_theta2", "synflow-l2", {}, 1e-12),
        ("released_SynFlowL2", "synflow-l2", {}, 1e-5),
        ("algorithm1_PX", "px", {"norm": "running"}, 1e-6),
        ("released_PX", "px", {"norm": "released"}, 1e-3),
    ],
)
def test_round_1_on_resnet20_matches(which, scorer, options, tolerance):
    net, (x, _) = reference_net(), reference_batch()
    mine = hf_px.score(net, scorer, [x], **options)
    if which == "released_SynFlowL2":  # they score |w · ∂R/∂w²|, w not squared
        weights = dict(net.named_parameters())
        mine = {name: s / weights[name].detach().abs() for name, s in mine.items()}
    assert gap(mine, reference_numbers(which)[0]) < tolerance


@needs_reference
@pytest.mark.parametrize(
    ("which", "scorer", "options", "overlap"),
    [
        ("synflowl2_theta2", "synflow-l2", {}, 0.98),
        pytest.param("algorithm1_PX", "px", {"norm": "running"}, 0.98, marks=pytest.mark.slow),
        # chaotic: another order of the same samples gives a mask with Jaccard 0.35 to ours, the reference one of 0.38;
        # how many weights each layer keeps agrees well, and that is asserted too
        pytest.param("released_PX", "px", {"norm": "released"}, 0.3, marks=pytest.mark.slow),
    ],
)
def test_100_rounds_on_resnet20_match(which, scorer, options, overlap):
    net, (x, _) = reference_net(), reference_batch()
    mask = hf_px.prune(net, scorer, sparsity=0.982, batches=[x], keep_head=False, progress=False, **options)
    theirs = Mask(reference_numbers(which)[1])
    found = jaccard(mask, theirs)
    print(f"{which}: Jaccard {found:.4f}")
    assert found > overlap
    for name, bits in theirs.bits.items():
        kept = int(bits.sum())
        assert abs(int(mask.bits[name].sum()) - kept) <= 0.25 * kept + 5, name
