"""Every scorer on every architecture of recipes/architectures.py: finite scores, exact counts, the model bit
for bit as it was, flow that enters by the stem and leaves by the head.
"""

from __future__ import annotations

import math

import pytest
import timm
import torch
from support.common import state_of

import hf_px
from hf_px.core.batches import Batches
from hf_px.core.forward import undisturbed
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable
from hf_px.paths import weights_that_steer
from recipes.architectures import CLASSES, ZOO

SPARSITY = 0.5
# few walks and steps: the sweep asks whether a method runs, not how good it is
PRUNED = ("px", "snip", "magnitude")  # one of each kind; the mask of others is made of their scores in the same way
OPTIONS = {"phew": {"walks": 8, "walkers": 4}, "prospr": {"steps": 1}}
# scores that share out one quantity R: what flows in flows out
FLOWS = ("px", "px-path", "synflow", "synflow-l2")
# where more than one tensor is the first or the last on every path
STEMS = {"repvgg_a0": ["stem.conv_kxk.conv.weight", "stem.conv_1x1.conv.weight"]}
HEADS = {"deit_distilled": ["head.weight", "head_dist.weight"]}


def check_scores(arch, scorer, scores, model, batches):
    for name, weight in prunable(model).items():
        assert scores[name].shape == weight.shape, name
        assert torch.isfinite(scores[name]).all(), f"{name}: not finite"
    assert any(s.any() for s in scores.values()), "every score is zero"
    if scorer not in FLOWS:
        return
    for name, s in scores.items():
        assert (s >= 0).all(), f"{name}: negative"
    total = {name: math.fsum(s.double().flatten().tolist()) for name, s in scores.items()}
    names = list(total)
    inflow = sum(total[name] for name in STEMS.get(arch.name, names[:1]))
    outflow = sum(total[name] for name in HEADS.get(arch.name, names[-1:]))
    # float32 over some fifty layers; a path lost or counted twice is far above it
    assert inflow == pytest.approx(outflow, rel=1e-4), f"{inflow} flows in by {names[0]}, {outflow} out by {names[-1]}"
    with undisturbed(model):
        off = weights_that_steer(model, Mask.ones(prunable(model)).weights(model), Batches(batches).first())
    # the share of queries, keys and the like in the trace is no flow
    on_paths = {name: s.double()[~off[name]].sum() if name in off else total[name] for name, s in scores.items()}
    assert max(on_paths.values()) <= inflow * (1 + 1e-4), "more flows through a layer than into the network"


def check_mask(mask, model):
    weights = prunable(model)
    total = sum(w.numel() for w in weights.values())
    assert set(mask.bits) == set(weights)
    assert mask.kept == round((1 - SPARSITY) * total), f"kept {mask.kept} of {total}"


def attempt(arch, scorer, model, batches, pruned):
    """What is wrong with this pair, or None."""
    options = OPTIONS.get(scorer, {})
    try:
        check_scores(arch, scorer, hf_px.score(model, scorer, batches, **options), model, batches)
        if scorer not in pruned:
            return None
        # min_per_layer: the remedy that CollapseError names. timm draws some heads so small that magnitude empties them
        mask = hf_px.prune(
            model, scorer, sparsity=SPARSITY, batches=batches, rounds=1, min_per_layer=4, progress=False, **options
        )
        check_mask(mask, model)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.filterwarnings("ignore:.*score exactly zero:UserWarning")  # queries, keys and the like: expected
@pytest.mark.parametrize(
    "arch",
    [pytest.param(a, id=a.name.replace(" ", "-")) for a in ZOO],
)
def test_every_scorer_works_or_says_why_not(arch, pruned=PRUNED):
    model, batches = arch.model(), arch.batches()
    next(model.children()).eval()  # flags that differ between modules have to come back so
    before, faults = state_of(model), []
    for scorer in hf_px.list_scorers():
        fault = attempt(arch, scorer, model, batches, pruned)
        if fault:
            faults.append(f"{scorer}: {fault}")
        if state_of(model) != before:
            faults.append(f"{scorer}: changed the model or torch's random state")
            before = state_of(model)
    assert not faults, "\n".join([f"{len(faults)} faults", *faults])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*score exactly zero:UserWarning")
@pytest.mark.parametrize("arch", [pytest.param(a, id=a.name.replace(" ", "-")) for a in ZOO])
def test_every_scorer_prunes_every_network(arch):
    test_every_scorer_works_or_says_why_not(arch, pruned=hf_px.list_scorers())


def test_the_sweep_is_as_wide_as_it_says():
    narrow = [a.name for a in ZOO]
    assert len(set(narrow)) == len(narrow)
    assert len([name for name in narrow if not name.startswith("transformers")]) >= 25
    assert {"transformers ResNet", "transformers ViT", "transformers Dinov2"} <= set(narrow)
    assert set(timm.list_models("test_*")) <= set(narrow)
    assert len(hf_px.list_scorers()) == 16


def test_synflow_runs_on_a_resnet50_at_224():
    """The paper could not: R leaves float32."""
    torch.manual_seed(0)
    model = timm.create_model("resnet50", zero_init_last=False)
    before = state_of(model)
    scores = hf_px.score(model, "synflow")  # 224x224 from timm's own record of the model
    assert state_of(model) == before
    total = {name: float(s.sum()) for name, s in scores.items()}
    weights = dict(model.named_parameters())
    for name, s in scores.items():
        # a random draw of 25 million holds a few exact zeros, which carry nothing
        assert torch.isfinite(s).all() and torch.equal(s > 0, weights[name] != 0), name
    assert total["fc.weight"] == pytest.approx(total["conv1.weight"], rel=1e-9)


def test_a_network_asleep_is_refused_and_fill_zeros_it_is_not():
    """Why the zoo wakes its models: zeros in the last batch norm of each block or in the head cut all paths."""
    from recipes.architectures import fill_zeros_

    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=CLASSES)
    torch.nn.init.zeros_(model.fc.weight)
    with pytest.raises(hf_px.core.errors.NoSignalError):
        hf_px.prune(model, "synflow", sparsity=0.5, rounds=1, input_size=(3, 48, 48), progress=False)
    mask = hf_px.prune(fill_zeros_(model), "synflow", sparsity=0.5, rounds=1, input_size=(3, 48, 48), progress=False)
    assert mask.density == pytest.approx(0.5, abs=1e-4)
