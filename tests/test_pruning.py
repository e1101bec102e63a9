"""prune and score: exact counts, rounds, scopes, what is refused before work starts, what is reported afterwards."""

from __future__ import annotations

import itertools
import warnings

import pytest
import timm
import torch
from support.common import digits_batches, state_of
from support.mlp import DATA, X, Y, mlp
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

import hf_px
from hf_px.core.errors import CollapseError, NonFiniteScoreError, NoSignalError, UnsupportedModelError
from hf_px.core.head import head_of
from hf_px.core.prunable import prunable
from hf_px.models.networks import resnet20
from hf_px.paths.collapse import warn_of_lost_layers


@pytest.mark.parametrize("scorer", hf_px.list_scorers())
@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.5])
def test_exactly_round_of_density_times_n_survive(scorer, sparsity):
    model = mlp()
    mask = hf_px.prune(model, scorer, sparsity=sparsity, batches=DATA, rounds=3, progress=False)
    total = sum(w.numel() for w in prunable(model).values())
    assert mask.kept == round((1 - sparsity) * total)
    assert set(mask.bits) == set(prunable(model))


@pytest.mark.parametrize("scorer", [s for s in hf_px.list_scorers() if s not in ("force",)])
def test_masks_are_nested_over_rounds(scorer):
    """A pruned weight never comes back."""
    seen: list[hf_px.Mask] = []
    hf_px.prune(
        mlp(), scorer, sparsity=0.6, batches=DATA, rounds=4, progress=False, on_round=lambda _, mask: seen.append(mask)
    )
    assert len(seen) == 4
    for before, after in itertools.pairwise(seen):
        assert before & after == after
        assert after.kept < before.kept


def test_force_may_bring_weights_back_and_scores_what_is_pruned():
    """Make pruned weights matter again: with the input's main feature cut, FORCE gives it a score, iter-snip zero."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4))
    mask = hf_px.Mask({"0.weight": torch.rand(4, 6) < 0.5})
    weights = mask.weights(model)
    from hf_px.core.batches import Batches
    from hf_px.core.registry import scorers

    gen = torch.Generator().manual_seed(0)
    dead = ~mask.bits["0.weight"]
    assert (scorers["force"].score(model, weights, Batches(DATA), generator=gen)["0.weight"][dead] > 0).any()
    assert (scorers["iter-snip"].score(model, weights, Batches(DATA), generator=gen)["0.weight"][dead] == 0).all()


@pytest.mark.parametrize("schedule", ["exponential", "linear", "one-shot"])
def test_schedules_end_at_the_same_count(schedule):
    rounds = None if schedule == "one-shot" else 5
    mask = hf_px.prune(mlp(), "magnitude", sparsity=0.5, rounds=rounds, schedule=schedule, progress=False)
    assert mask.kept == 72


def test_scopes():
    model = mlp((8, 8, 8, 4))
    for scope in ("layer", "erk"):
        mask = hf_px.prune(model, "magnitude", sparsity=0.5, scope=scope, progress=False)
        assert mask.kept == round(0.5 * 160)
    mask = hf_px.prune(model, "random", scope="layer", sparsity=0.5, keep_head=False)
    assert all(bits.float().mean() == 0.5 for bits in mask.bits.values())
    for rounds in (1, 7):
        mask = hf_px.prune(model, "px", scope="2:4", batches=[torch.randn(4, 8)], rounds=rounds, progress=False)
        for bits in mask.bits.values():
            assert (bits.view(len(bits), -1, 4).sum(-1) == 2).all()


def test_nothing_about_the_model_changes():
    model = resnet20(num_classes=4)
    model.train()
    model.blocks[0].eval()
    batches = [(torch.randn(4, 3, 16, 16), torch.arange(4))]
    before = state_of(model)
    for scorer in hf_px.list_scorers():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quick = {"walks": 64} if scorer == "phew" else {}
            hf_px.prune(model, scorer, sparsity=0.5, batches=batches, rounds=1, progress=False, **quick)
        assert state_of(model) == before, scorer


def test_same_seed_same_mask_other_seed_other_mask():
    model = mlp()
    for scorer in ("random", "ntk-sap", "phew"):
        a, b, c = (hf_px.prune(model, scorer, sparsity=0.5, rounds=2, seed=s, progress=False) for s in (1, 1, 2))
        assert a.digest() == b.digest() != c.digest()


def test_a_callable_is_a_scorer():
    def distance_from_one(model, weights, batches, *, generator):
        assert [tuple(labels.shape) for _, labels in batches] == [(8,), (8,)]
        return {name: -(w - 1).abs() for name, w in weights.items()}

    mask = hf_px.prune(mlp(), distance_from_one, sparsity=0.5, batches=DATA, progress=False)
    assert mask.kept == 72


def test_batches_come_as_tuples_dicts_or_bare_inputs():
    class Hub(nn.Module):  # as transformers models are called
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def forward(self, pixel_values, labels=None):
            return {"logits": self.inner(pixel_values)}

    torch.manual_seed(0)
    model = Hub()
    dicts = [{"pixel_values": x, "labels": y} for x, y in DATA]
    for scorer in ("snip", "px"):
        a = hf_px.score(model, scorer, dicts)
        b = hf_px.score(model.inner, scorer, DATA)
        for name, s in b.items():
            assert torch.equal(a[f"inner.{name}"], s)
    assert (
        hf_px.prune(model.inner, "px", sparsity=0.5, batches=[x for x, _ in DATA], rounds=2, progress=False).kept == 72
    )


def test_options_reach_the_scorer():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    model[1].running_var.uniform_(0.1, 10)
    scores = {norm: hf_px.score(model, "px", DATA, norm=norm) for norm in ("batch", "running", "released")}
    assert not torch.allclose(scores["batch"]["0.weight"], scores["running"]["0.weight"])
    assert not torch.allclose(scores["batch"]["0.weight"], scores["released"]["0.weight"])


def test_bad_batches_are_refused():
    model = mlp()
    for scorer, batches, message in (
        ("px", [], "empty"),
        ("px", iter(DATA), "iterator"),
        ("px", X, "single batch"),
        ("snip", [X], "needs labels"),
        ("px", [X.long()], "int64"),
        ("px", [X * float("nan")], "nan"),
        ("px", [X[:0]], "no samples"),
        ("px", [{"labels": Y}], "no floating-point tensor"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            hf_px.prune(model, scorer, sparsity=0.5, batches=batches, progress=False)


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (torch.tensor([0.0, 1, 2, 3]), r"labels are torch.float32; .*labels.long\(\)"),
        (torch.tensor([[0], [1], [2], [3]]), r"labels have shape \(4, 1\); .*labels.flatten\(\)"),
        (torch.eye(4, dtype=torch.long), r"labels have shape \(4, 4\); .*labels.argmax\(1\)"),
        (torch.tensor([0, 1, 2]), "batch 0: 4 inputs, but 3 labels"),
        (torch.tensor([-1, 0, 1, 2]), "label -1, but labels start at 0"),
    ],
)
@pytest.mark.parametrize("scorer", ["snip", "grasp", "prospr"])
def test_labels_in_the_wrong_form_are_refused(scorer, labels, match):
    model = timm.create_model("test_resnet", num_classes=4, zero_init_last=False)
    with pytest.raises(ValueError, match=match):
        hf_px.prune(
            model, scorer, sparsity=0.5, rounds=1, batches=[(torch.randn(4, 3, 32, 32), labels)], progress=False
        )


@pytest.mark.parametrize("scorer", ["snip", "px", "px-path", "magnitude", "wanda"])
def test_channels_last_and_an_image_without_a_batch_are_refused(scorer):
    model = timm.create_model("test_resnet", num_classes=4, zero_init_last=False)
    x, y = torch.randn(4, 3, 32, 32), torch.arange(4)
    with pytest.raises(ValueError, match=r"\(4, 32, 32, 3\), with channels last; .*x.permute\(0, 3, 1, 2\)"):
        hf_px.prune(model, scorer, sparsity=0.5, batches=[(x.permute(0, 2, 3, 1), y)], rounds=1, progress=False)
    with pytest.raises(ValueError, match=r"\(3, 32, 32\), one image without a batch; pass x\[None\]"):
        hf_px.prune(model, scorer, sparsity=0.5, batches=[x[0]], rounds=1, progress=False)
    mask = hf_px.prune(model, "random", sparsity=0.5, progress=False)
    with pytest.raises(ValueError, match="with channels last"):
        hf_px.repair(model, mask, [x.permute(0, 2, 3, 1)], progress=False)


def test_a_name_in_place_of_a_model_is_refused_everywhere():
    mask = hf_px.prune(torch.nn.Linear(4, 4), "magnitude", sparsity=0.5, progress=False)
    x = [torch.randn(2, 4)]
    calls = (
        lambda: hf_px.prune("resnet18", "magnitude"),
        lambda: hf_px.score("resnet18", "magnitude"),
        lambda: hf_px.repair("resnet18", mask, x),
        lambda: hf_px.compress("resnet18", x),
        lambda: hf_px.summary("resnet18", mask),
        lambda: hf_px.fast("resnet18"),
        lambda: mask.apply_("resnet18"),
    )
    for call in calls:
        with pytest.raises(TypeError, match="`model` is 'resnet18'; expected a torch module"):
            call()


def test_a_compiled_model_is_pruned_as_the_module_inside():
    model = timm.create_model("test_resnet", num_classes=4, zero_init_last=False)
    x = torch.randn(4, 3, 32, 32)
    compiled = torch.compile(model, backend="eager")
    how = {"sparsity": 0.5, "rounds": 1, "progress": False}
    mask = hf_px.prune(model, "px-path", batches=[x], **how)
    assert hf_px.prune(compiled, "px-path", batches=[x], **how) == mask
    assert hf_px.compress(compiled, [x], **how).mask.bits.keys() == mask.bits.keys()
    assert str(hf_px.summary(compiled, mask)) == str(hf_px.summary(model, mask))
    assert type(hf_px.repair(compiled, mask, [x], progress=False)) is type(model)
    mask.apply_(compiled)
    assert not model.fc.weight[~mask.bits["fc.weight"]].any()
    model.layer1.compile(backend="eager")
    with pytest.raises(UnsupportedModelError, match="layer1: is compiled; prune and repair the module first"):
        hf_px.prune(model, "magnitude", **how)


def test_nan_weights_and_wrong_options_are_refused():
    model = mlp()
    with torch.no_grad():
        model[2].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"2\.weight: holds nan"):
        hf_px.prune(model, "magnitude", sparsity=0.5)
    with pytest.raises(TypeError, match="`walks` is not an option of prune or of scorer snip"):
        hf_px.prune(mlp(), "snip", sparsity=0.5, batches=DATA, walks=3)
    with pytest.raises(ValueError, match="`norm` batch: snip has no such option"):
        hf_px.prune(mlp(), "snip", sparsity=0.5, batches=DATA, norm="batch")
    with pytest.raises(ValueError, match="`norm` eval must be one of batch, flow"):
        hf_px.score(mlp(), "px", DATA, norm="eval")
    with pytest.raises(ValueError, match="input_size"):
        hf_px.prune(nn.Sequential(nn.Conv2d(3, 4, 3)), "synflow", sparsity=0.5)


def test_non_finite_scores_name_scorer_layer_and_remedy():
    with pytest.raises(NonFiniteScoreError, match=r"scorer broken: the scores of 2.weight .*float64"):

        def broken(model, weights, batches, *, generator):
            return {n: w * float("inf" if n == "2.weight" else 1) for n, w in weights.items()}

        hf_px.prune(mlp(), broken, sparsity=0.5)


def test_a_mask_without_signal_is_refused_and_little_signal_is_told():
    model = mlp()
    nn.init.zeros_(model[4].weight)
    with pytest.raises(NoSignalError, match="every weight scores zero"):
        hf_px.prune(model, "px", sparsity=0.5, batches=[X], progress=False)
    model = mlp()
    nn.init.zeros_(model[4].weight[:, :4].data)
    model[4].weight.data[:, :4] = 0
    with pytest.warns(UserWarning, match="score exactly zero"):
        hf_px.prune(model, "px", sparsity=0.2, batches=[X], rounds=1, progress=False)


def test_collapse_is_an_error_that_names_the_layers():
    model = mlp()
    with torch.no_grad():
        model[2].weight.mul_(1e-6)
    with pytest.raises(CollapseError, match=r"emptied: 2\.weight.*min_per_layer"):
        hf_px.prune(model, "magnitude", sparsity=0.7, batches=DATA)
    mask = hf_px.prune(model, "magnitude", sparsity=0.7, batches=DATA, min_per_layer=12)
    assert int(mask.bits["2.weight"].sum()) == 12 and mask.kept == 43


def test_an_emptied_head_is_told_to_keep_the_head():
    model = resnet20(num_classes=10, generator=torch.Generator().manual_seed(0))

    def all_but_the_head(model, weights, batches, *, generator):
        return {name: torch.full_like(w, float(name != "fc.weight")) for name, w in weights.items()}

    with pytest.raises(CollapseError, match=r"emptied: .*fc.weight.*`keep_head` keeps the head's weights"):
        hf_px.prune(model, all_but_the_head, sparsity=0.01, input_size=(3, 32, 32), keep_head=False, progress=False)
    head = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    mask = hf_px.Mask({"0.weight": torch.ones(4, 4).bool(), "2.weight": torch.zeros(4, 4).bool()})
    with pytest.warns(UserWarning, match="no weight is left in 1 .2.weight.: .*`keep_head` keeps all weights"):
        warn_of_lost_layers(mask, mask.bits, head_of(head))


def test_norm_flow_is_not_advised_for_queries_and_keys():
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model = ViTForImageClassification(ViTConfig(**small, image_size=32, patch_size=8, num_labels=4)).eval()
    x = [torch.randn(4, 3, 32, 32)]
    mlp = [f"vit.layers.{i}.mlp.fc{j}.weight" for i in range(2) for j in (1, 2)]
    with pytest.warns(UserWarning, match="network runs without them") as found:
        hf_px.prune(model, "px", sparsity=0.5, rounds=2, batches=x, keep_dense=mlp, progress=False)
    (text,) = [str(w.message) for w in found if "runs without them" in str(w.message)]
    assert "q_proj.weight" in text and "never had a score" not in text and "flow" not in text
    assert any("no queries, no keys" in str(w.message) and "attention" in str(w.message) for w in found)


def test_dead_weights_are_counted_beside_nominal_sparsity():
    model = mlp()
    bits = hf_px.Mask.ones(prunable(model)).bits
    cut = bits["2.weight"].clone()
    cut[3] = False  # unit 3 has no way in: its 4 weights onward are dead
    report = hf_px.summary(model, hf_px.Mask({**bits, "2.weight": cut}))
    assert report.dead == 4 and report.nominal_sparsity == pytest.approx(8 / 144)
    assert report.effective_sparsity == pytest.approx(12 / 144)
    assert [row.live_units for row in report.rows] == [8, 7, 4]
    assert "effective" in str(report) and report.collapsed == []


# the paper's network at the paper's sparsity


def emptied(model, batches, norm, rounds=100):
    mask = hf_px.prune(model, "px", sparsity=0.982, batches=batches, norm=norm, rounds=rounds, progress=False)
    return [name for name, bits in mask.bits.items() if not bits.any()]


def test_px_empties_no_layer_where_algorithm_1_to_the_letter_empties_the_last_blocks():
    model = resnet20(generator=torch.Generator().manual_seed(0))
    batches = [(x[:, :, ::2, ::2], y) for x, y in digits_batches(per_class=2)]  # 16x16: a quarter of the time
    assert emptied(model, batches, "batch", rounds=30) == []
    last = [f"blocks.{i}.conv{j}.weight" for i in (6, 7, 8) for j in (1, 2)]
    assert emptied(model, batches, "running", rounds=30) == last


@pytest.mark.slow
def test_on_the_reference_network_px_empties_no_layer_and_running_eight(shared):
    from support.reference_net import reference_batch, reference_net

    model, (x, _) = reference_net(), reference_batch()
    assert emptied(model, [x[:20]], "batch") == []
    assert len(emptied(model, [x], "running")) == 8


# interrupted


@pytest.mark.parametrize("scorer", hf_px.list_scorers())
def test_from_any_round_on_the_mask_is_that_of_a_run_without_a_break(scorer):
    seen: dict[int, hf_px.Mask] = {}
    args = {"sparsity": 0.7, "batches": DATA, "rounds": 4, "progress": False, "min_per_layer": 4, "seed": 3}
    whole = hf_px.prune(mlp(), scorer, on_round=seen.__setitem__, **args)
    assert list(seen) == [1, 2, 3, 4] and seen[4].digest() == whole.digest()
    for t, mask in seen.items():
        later: dict[int, hf_px.Mask] = {}
        found = hf_px.prune(mlp(), scorer, resume_from=(t, mask), on_round=later.__setitem__, **args)
        assert list(later) == list(range(t + 1, 5)) and found.digest() == whole.digest()


def test_a_break_in_another_run_is_refused():
    mask = hf_px.prune(mlp(), "magnitude", sparsity=0.5)
    with pytest.raises(ValueError, match="round 7 of 4"):
        hf_px.prune(mlp(), "random", sparsity=0.5, rounds=4, resume_from=(7, mask))
    with pytest.raises(ValueError, match="another model"):
        hf_px.prune(mlp(), "random", sparsity=0.5, rounds=4, resume_from=(1, hf_px.Mask({"x": torch.ones(3).bool()})))


@pytest.mark.parametrize("scorer", hf_px.list_scorers())
def test_a_tensor_kept_whole_counts(scorer):
    model, total = mlp((6, 8, 8, 4)), 6 * 8 + 8 * 8 + 8 * 4
    mask = hf_px.prune(
        model, scorer, sparsity=0.6, batches=DATA, rounds=3, progress=False, keep_dense=["4.weight"], min_per_layer=4
    )
    assert mask.bits["4.weight"].all() and mask.kept == round(0.4 * total)
    assert mask.bits["0.weight"].sum() >= 4 and mask.bits["2.weight"].sum() >= 4


@pytest.mark.parametrize("scope", ["layer", "erk"])
def test_with_budgets_by_layer_a_dense_tensor_counts_too(scope):
    mask = hf_px.prune(mlp(), "magnitude", sparsity=0.5, scope=scope, keep_dense=["0.weight"], keep_head=False)
    assert mask.bits["0.weight"].all() and mask.kept == 72
