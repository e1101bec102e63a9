"""PruneConfig: every choice is checked before work starts, defaults depend on method, scope and network."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from support.mlp import DATA, mlp
from torch import nn

import hf_px

# bad input, before work starts


class Untouchable:
    """Batches that must not be read."""

    def __iter__(self):
        raise AssertionError("work has started")
        yield


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sparsity": 98.2}, "did you mean 0.982"),
        ({"sparsity": 1.0}, r"outside \[0, 1\)"),
        ({"sparsity": -0.1}, r"outside \[0, 1\)"),
        ({"sparsity": float("nan")}, r"outside \[0, 1\)"),
        ({"sparsity": 0.9999}, "keeps none"),
        ({"scorer": "pxx"}, "did you mean px"),
        ({"scorer": "sinp"}, "snip"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": 2.5}, "rounds"),
        ({"schedule": "cosine"}, "exponential, linear, one-shot"),
        ({"schedule": "one-shot", "rounds": 3}, "one round"),
        ({"scope": "local"}, "global, layer, erk"),
        ({"scope": "3:2"}, "0 < n < m"),
        ({"scope": "2:4"}, "0.weight has 6 inputs"),
        ({"scope": "1:2", "sparsity": 0.9}, "means sparsity 0.5"),
        ({"scope": "channel:0"}, "channel:8, channel:16"),
        ({"scope": "channels"}, "channel"),
        ({"scope": "channel", "of": "flops"}, "there are weights, macs"),
        ({"of": "macs"}, "`of` macs goes with `scope` channel, not with global"),
        ({"scope": "channel", "min_per_layer": 2}, "`min_per_layer` does not go with `scope` channel"),
        ({"scope": "channel", "keep_head": True}, "`keep_head` does not go with `scope` channel"),
        ({"min_per_layer": -1}, "min_per_layer"),
        ({"min_per_layer": 1000}, "`min_per_layer` 1000 needs 144 weights, but `sparsity` 0.5 leaves 72"),
        ({"exclude": ["head.weight"]}, "head.weight is not a prunable tensor"),
        ({"model": nn.Sequential(nn.ReLU())}, "no prunable tensor"),
        ({"model": nn.Linear(6, 4, device="meta")}, "meta device"),
        ({"batches": None}, "needs data; pass `batches`"),
        ({"keep_head": "no"}, "`keep_head` is 'no'; expected True, False or None"),
        ({"seed": "a"}, "`seed` is 'a'; expected a non-negative integer"),
        ({"seed": 1.5}, r"`seed` is 1\.5; expected"),
        ({"seed": -1}, "`seed` -1 is outside"),
        ({"min_per_layer": 1.5}, r"`min_per_layer` is 1\.5; expected a non-negative integer"),
        ({"keep_dense": ["x"]}, r"`keep_dense`: x is not a prunable tensor of this model; it has 0\.weight, 2\.weight"),
    ],
)
def test_bad_input_is_refused_before_work_starts(change, message):
    arguments = {"model": mlp(), "scorer": "px", "sparsity": 0.5, "batches": Untouchable(), "progress": False, **change}
    with pytest.raises(ValueError, match=message):
        hf_px.prune(arguments.pop("model"), arguments.pop("scorer"), **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "resnet18"}, "`model` is 'resnet18'; expected a torch module"),
        ({"keep_dense": 5}, "`keep_dense` is 5; expected names of tensors"),
        ({"resume_from": 3}, r"`resume_from` is 3; expected \(t, mask\)"),
        ({"sparsity": True}, "`sparsity` is a bool; expected a number"),
        ({"config": 1}, "`config` is not an option of prune or of scorer px"),
    ],
)
def test_wrong_types_are_refused(change, message):
    arguments = {"model": mlp(), "scorer": "px", "sparsity": 0.5, "batches": DATA, "progress": False, **change}
    with pytest.raises(TypeError, match=message):
        hf_px.prune(arguments.pop("model"), arguments.pop("scorer"), **arguments)


def test_any_real_number_is_a_sparsity():
    masks = [hf_px.prune(mlp(), "magnitude", sparsity=s) for s in (0.5, np.float32(0.5), Fraction(1, 2))]
    assert masks[0] == masks[1] == masks[2]


def test_a_config_holds_all_choices():
    config = hf_px.PruneConfig("px", sparsity=0.6, rounds=3, keep_head=False, seed=2)
    choices = {"sparsity": 0.6, "rounds": 3, "keep_head": False, "seed": 2}
    by_name = hf_px.prune(mlp(), "px", **choices, batches=DATA, progress=False)
    assert hf_px.prune(mlp(), config, batches=DATA, progress=False) == by_name
    assert hf_px.prune(mlp(), config, batches=DATA, exclude=[], progress=False) == by_name
    scores = hf_px.score(mlp(), config, DATA)
    assert all(torch.equal(scores[name], s) for name, s in hf_px.score(mlp(), "px", DATA, seed=2).items())
    for name, value in choices.items():
        with pytest.raises(TypeError, match=f"`{name}` is given beside a PruneConfig.*replace"):
            hf_px.prune(mlp(), config, batches=DATA, **{name: value})
    with pytest.raises(TypeError, match="`round` is not an option of score or of scorer px"):
        hf_px.score(mlp(), config, DATA, round=1)


def test_what_cannot_be_kept_whole_is_refused():
    with pytest.raises(ValueError, match=r"`keep_dense` needs 32 weights for 4\.weight, but `sparsity` 0\.9 leaves 14"):
        hf_px.prune(mlp(), "magnitude", sparsity=0.9, keep_dense=["4.weight"])
    message = r"^`keep_head` needs 32 weights for 4\.weight, but `sparsity` 0\.95 leaves 7 .*or prune the head, too$"
    with pytest.raises(ValueError, match=message):
        hf_px.prune(mlp(), "magnitude", sparsity=0.95, keep_head=True)
    with pytest.raises(ValueError, match="nothing is not a prunable tensor"):
        hf_px.prune(mlp(), "magnitude", sparsity=0.5, keep_dense=["nothing"])
    with pytest.raises(ValueError, match="`keep_dense` does not go with `scope` 1:2"):
        hf_px.prune(mlp(), "magnitude", sparsity=0.5, keep_dense=["4.weight"], scope="1:2")


# defaults


def test_the_head_stays_dense_where_it_takes_at_most_half_of_what_stays():
    """mlp() has 48 + 64 + 32 weights: a head of 32 is at most half of 72 or of 64, not of 63."""
    for sparsity, dense in ((0.5, True), (1 - 64 / 144, True), (1 - 63 / 144, False)):
        mask = hf_px.prune(mlp(), "random", sparsity=sparsity, batches=DATA)
        assert bool(mask.bits["4.weight"].all()) is dense
        assert mask.kept == round((1 - sparsity) * 144)
    assert not hf_px.prune(mlp(), "random", sparsity=0.5, keep_head=False).bits["4.weight"].all()
    assert hf_px.prune(mlp(), "random", sparsity=0.7, keep_head=True).bits["4.weight"].all()


def test_without_a_sparsity_it_is_the_papers_or_that_of_the_scope():
    model = mlp((64, 64, 64, 8))
    assert hf_px.prune(model, "random").kept == round(0.018 * (64 * 64 * 2 + 64 * 8))
    assert hf_px.prune(model, "magnitude", scope="2:4").sparsity == 0.5
