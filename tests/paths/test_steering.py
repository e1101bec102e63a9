"""Weights that steer: their share in the trace against the exact NTK, and against paths where both exist."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, jacrev, vmap

import hf_px
from hf_px.core.batches import Batches
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable
from hf_px.paths import steering_shares, weights_that_steer
from hf_px.paths.record_replay import RULES
from hf_px.paths.steering import ON_PATHS
from hf_px.scorers import px_path as px_path_module


class Attention(nn.Module):
    """One head of two channels on three tokens; `kind` is how the attention is written."""

    def __init__(self, kind="fused", outputs=3):
        super().__init__()
        self.kind = kind
        if kind == "module":
            self.mha = nn.MultiheadAttention(2, 1, bias=False, batch_first=True)
        else:
            self.q, self.k, self.v = (nn.Linear(2, 2, bias=False) for _ in range(3))
        self.out = nn.Linear(2, outputs, bias=False)

    def forward(self, x):
        if self.kind == "module":
            return self.out(self.mha(x, x, x, need_weights=False)[0].mean(1))
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.kind == "fused":
            return self.out(F.scaled_dot_product_attention(q, k, v).mean(1))
        return self.out(((q @ k.mT / 2**0.5).softmax(-1) @ v).mean(1))


class Gates(nn.Module):
    """Squeeze-and-excitation and a gated linear unit."""

    def __init__(self):
        super().__init__()
        self.stem, self.squeeze, self.wide, self.out = (
            nn.Linear(a, b, bias=False) for a, b in ((2, 3), (3, 3), (3, 6), (3, 2))
        )

    def forward(self, x):
        x = self.stem(x)
        x = x * self.squeeze(x).sigmoid()
        return self.out(F.glu(self.wide(x)))


def exact_shares(model, x):
    """{name: θ² (∂f^k(x_n)/∂θ)²} for each image n and output k, by torch.func."""
    weights = {n: p.detach() for n, p in model.named_parameters()}
    jacobian = vmap(jacrev(lambda w, x: functional_call(model, w, (x[None],))[0]), (None, 0))(weights, x)
    return {n: j.square() * weights[n].square() for n, j in jacobian.items()}


def example(model, images=6):
    torch.manual_seed(5)
    for p in model.parameters():
        nn.init.normal_(p)
    shape = (images, 2) if isinstance(model, Gates) else (images, 3, 2)
    return model.double(), torch.randn(shape, dtype=torch.float64)


NETS = {
    "fused": (lambda: Attention("fused"), {"q.weight": ..., "k.weight": ...}),
    "explicit": (lambda: Attention("explicit"), {"q.weight": ..., "k.weight": ...}),
    "module": (lambda: Attention("module"), {"mha.in_proj_weight": slice(0, 4)}),  # queries, keys and values in one
    "gates": (Gates, {"squeeze.weight": ..., "wide.weight": slice(3, 6)}),
}


@pytest.mark.parametrize("net", NETS)
def test_they_are_found(net):
    make, steering = NETS[net]
    model, x = example(make())
    found = weights_that_steer(model, Mask.ones(prunable(model)).weights(model), Batches([x]).first())
    assert set(found) == set(steering)
    for name, rows in steering.items():
        expected = torch.zeros_like(found[name])
        expected[rows] = True
        assert torch.equal(found[name], expected), name


def shares(model, x, seed=0):
    """{name: T} of the weights that steer, and the sum of T over all others."""
    weights, batch = Mask.ones(prunable(model)).weights(model), Batches([x]).first()
    steers = weights_that_steer(model, weights, batch)
    found = steering_shares(model, weights, steers, batch, "batch", torch.Generator().manual_seed(seed))
    return found, found.pop(ON_PATHS)


@pytest.mark.parametrize("net", NETS)
def test_it_is_the_share_in_the_exact_ntk_to_the_stated_error(net):
    """Mean and deviation over draws of signs: Σ_n t_n, and √Σ_n 2 (t_n² - Σ_k t_nk²) ≤ √2 √Σ_n t_n²."""
    make, steering = NETS[net]
    model, x = example(make())
    draws = [shares(model, x, seed)[0] for seed in range(300)]
    exact = exact_shares(model, x)
    for name, rows in steering.items():
        found = torch.stack([draw[name][rows] for draw in draws])
        parts = exact[name][:, :, rows]  # images, outputs, weights
        share = parts.sum((0, 1))
        error = (2 * (parts.sum(1).square() - parts.square().sum(1))).sum(0).sqrt()
        assert (error <= 2**0.5 * parts.sum(1).square().sum(0).sqrt()).all()
        far = (found.mean(0) - share) / (error / len(draws) ** 0.5)
        assert far.abs().max() < 4.5, f"{name}: {far}"
        torch.testing.assert_close(found.std(0) / error, torch.ones_like(error), atol=0.35, rtol=0)


def on_paths(exact, steering):
    """Σ of the exact shares of weights on paths, by image: all but the rows that steer."""
    total = 0.0
    for name, parts in exact.items():
        kept = parts.clone()
        kept[:, :, steering.get(name, slice(0, 0))] = 0.0
        total = total + kept.flatten(1).sum(1)
    return total


@pytest.mark.parametrize("net", NETS)
def test_the_sum_over_weights_on_paths_has_the_same_law(net):
    make, steering = NETS[net]
    model, x = example(make())
    found = torch.stack([shares(model, x, seed)[1] for seed in range(300)])
    by_image = on_paths(exact_shares(model, x), steering)
    bound = 2**0.5 * by_image.square().sum().sqrt()
    assert found.std() <= 1.2 * bound
    assert abs(found.mean() - by_image.sum()) < 4.5 * found.std() / len(found) ** 0.5


@pytest.mark.parametrize(("scorer", "norm"), [("px-path", "batch"), ("px", "batch"), ("px", "flow")])
@pytest.mark.parametrize("net", NETS)
def test_with_one_output_the_score_is_the_exact_share_in_the_units_of_the_paths(net, scorer, norm):
    """No sign matters then. Units: over the weights on paths, scores and exact shares have the same sum."""
    make, steering = NETS[net]
    model = make()
    model.out = nn.Linear(model.out.in_features, 1, bias=False)
    model, x = example(model)
    scores, exact = hf_px.score(model, scorer, [x], norm=norm), exact_shares(model, x)
    c = sum(s.sum() for s in scores.values()) - sum(scores[name][rows].sum() for name, rows in steering.items())
    c = c / on_paths(exact, steering).sum()
    for name, rows in steering.items():
        torch.testing.assert_close(scores[name][rows], c * exact[name].sum((0, 1))[rows])


@pytest.mark.parametrize(("scorer", "norm"), [("px-path", "batch"), ("px", "batch"), ("px", "flow")])
@pytest.mark.parametrize("size", [0, 300])
def test_the_units_are_of_all_batches_together(scorer, norm, size):
    """Features 2^300 times as large, at the same gates, leave each batch another power of two beside its scores."""
    model = Gates()
    model.out = nn.Linear(3, 1, bias=False)
    model, x = example(model)
    x[0] *= 4
    model.stem.weight.data *= 2.0**size
    model.squeeze.weight.data *= 2.0**-size
    model.wide.weight.data[3:] *= 2.0**-size
    one, two = (hf_px.score(model, scorer, batches, norm=norm) for batches in ([x], [x[:1], x[1:]]))
    for name in one:
        torch.testing.assert_close(two[name] / two["stem.weight"].sum(), one[name] / one["stem.weight"].sum())


def test_px_path_of_a_batch_in_parts_is_that_of_the_batch(monkeypatch):
    model, x = example(Attention())
    whole = hf_px.score(model, "px-path", [x])
    monkeypatch.setattr(px_path_module, "PART", 12)
    sizes = recorded_sizes(monkeypatch)
    parts = hf_px.score(model, "px-path", [x])
    assert sizes == [2, 2, 2]
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name])


@pytest.mark.parametrize(("norm", "expected"), [("batch", [6]), ("running", [2, 2, 2])])
def test_px_path_never_parts_what_shares_batch_statistics(norm, expected, monkeypatch):
    model, x = example(nn.Sequential(nn.Conv1d(3, 2, 1), nn.BatchNorm1d(2), nn.Flatten(), nn.Linear(4, 2)))
    monkeypatch.setattr(px_path_module, "PART", 12)
    sizes = recorded_sizes(monkeypatch)
    hf_px.score(model, "px-path", [x], norm=norm)
    assert sizes == expected


def recorded_sizes(monkeypatch):
    """Sizes of the batches whose gates are recorded."""
    sizes, record = [], px_path_module.record
    monkeypatch.setattr(px_path_module, "record", lambda m, w, b, n: sizes.append(len(b.x)) or record(m, w, b, n))
    return sizes


class OneQuery(Attention):
    """Read at the first token, as at a class token, or on average over all tokens."""

    def __init__(self, mean):
        super().__init__()
        self.mean = mean

    def forward(self, x):
        y = F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))
        return self.out(y.mean(1) if self.mean else y[:, 0])


@pytest.mark.parametrize("mean", [False, True])
def test_path_scores_beside_them_are_the_exact_trace_over_signs_but_for_positions_that_share_weights(mean):
    """Values and output: the exact shares by torch.func, over all signs of values and tokens, and of the output.

    Weights shared by positions are where paths and trace part: paths count each position alone. The mean over three
    tokens with the same attention has a third of the exact share.
    """
    model, _ = example(OneQuery(mean))
    x = torch.randn(1, 3, 2, dtype=torch.float64)
    nn.init.zeros_(model.k.weight)  # equal attention, whatever the signs
    scores = hf_px.score(model, "px-path", [x])
    size = model.v.weight.detach().clone()
    patterns = [torch.tensor(s, dtype=torch.float64) for s in itertools.product((-1.0, 1.0), repeat=7)]
    total = {"v.weight": 0.0, "out.weight": 0.0}
    for s in patterns:
        model.v.weight.data = size * s[:4].view(2, 2)
        shares = exact_shares(model, x * s[4:].view(1, 3, 1))
        for name in total:
            total[name] += shares[name].sum((0, 1)) / len(patterns)
    for name, exact in total.items():
        torch.testing.assert_close(scores[name], exact / 3 if mean else exact)


class Relu(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)

    def forward(self, x):
        return self.out(torch.relu(self.b(torch.relu(self.a(x)))))


def signed(model):
    """The model at every combination of the signs of its weights."""
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    for signs in itertools.product((-1.0, 1.0), repeat=sum(w.numel() for w in weights.values())):
        parts = torch.tensor(signs, dtype=torch.float64).split([w.numel() for w in weights.values()])
        for p, w, s in zip(model.parameters(), weights.values(), parts):
            p.data = w * s.view(w.shape)
        yield model


def test_a_relu_layer_by_paths_and_by_signs_agree_in_expectation_over_weight_signs():
    model, x = Relu().double(), torch.randn(2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    batch, generator = Batches([x]).first(), torch.Generator().manual_seed(0)
    by_path = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    by_signs = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for m in signed(model):
        weights = Mask.ones(prunable(m)).weights(m)
        for name, s in hf_px.score(m, "px-path", [x]).items():
            by_path[name] += s
        everything = {n: torch.ones_like(w, dtype=torch.bool) for n, w in weights.items()}
        found = steering_shares(m, weights, everything, batch, "batch", generator)
        assert found.pop(ON_PATHS) == 0
        for name, s in found.items():
            by_signs[name] += s
    for name in by_path:
        torch.testing.assert_close(by_signs[name].detach(), by_path[name].detach(), msg=name)


@pytest.mark.parametrize("scorer", ["px", "px-path", "synflow", "synflow-l2", "logsynflow"])
@pytest.mark.parametrize("net", NETS)
def test_every_weight_has_a_score(scorer, net):
    model, x = example(NETS[net][0]())
    assert all((s > 0).all() for s in hf_px.score(model, scorer, [x]).values())


@pytest.mark.parametrize(("net", "rule"), [
    ("fused", "scaled_dot_product_attention"), ("explicit", "softmax"), ("module", "multi_head_attention_forward"),
    ("gates", "glu"), ("gates", "sigmoid"),
])  # fmt: skip
def test_each_rule_is_needed(net, rule, monkeypatch):
    model, x = example(NETS[net][0]())
    monkeypatch.delitem(RULES, rule)
    with pytest.raises((hf_px.core.errors.UnsupportedModelError, RuntimeError)):
        hf_px.score(model, "px-path", [x])


def test_signs_come_from_the_seed_and_from_the_batch():
    model, x = example(Attention())
    first, again, other = (hf_px.score(model, "px-path", [x], seed=seed)["q.weight"] for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    two, swapped = (hf_px.score(model, "px-path", [a, b])["q.weight"] for a, b in ((x, x), (x, x)))
    assert torch.equal(two, swapped)
    torch.manual_seed(123)
    assert torch.equal(hf_px.score(model, "px-path", [x])["q.weight"], first)  # torch's own generator plays no part


@pytest.mark.parametrize("scorer", ["synflow", "synflow-l2"])
def test_in_synflow_queries_and_keys_together_score_what_the_values_score(scorer):
    """By hand: the flow of the attention, split in proportion to the paths of q + k."""
    model, x = example(Attention())
    scores = hf_px.score(model, scorer, [x])
    flow = scores["v.weight"].sum()
    torch.testing.assert_close(scores["q.weight"].sum() + scores["k.weight"].sum(), flow)
    power = 1 if scorer == "synflow" else 2
    q, k = (w.detach().abs() ** power for w in (model.q.weight, model.k.weight))  # the image is ones, and tokens alike
    torch.testing.assert_close(scores["q.weight"], flow * q / (q.sum() + k.sum()))


def test_in_synflow_an_excitation_scores_what_its_channels_score():
    model, x = example(Gates())
    scores = hf_px.score(model, "synflow", [x])
    torch.testing.assert_close(scores["squeeze.weight"].sum(), scores["stem.weight"].sum())
    torch.testing.assert_close(scores["wide.weight"][3:].sum(), scores["wide.weight"][:3].sum())


@pytest.mark.parametrize("kind", ["fused", "explicit", "module"])
def test_phew_walks_through_queries_and_keys(kind):
    model, _ = example(Attention(kind))
    scores = hf_px.score(model, "phew", input_size=(3, 2))
    steering = [scores["mha.in_proj_weight"][:4]] if kind == "module" else [scores["q.weight"], scores["k.weight"]]
    assert all((s > 0.5).all() for s in steering)  # at most a half for weights that no walk has visited


@pytest.mark.parametrize("kind", ["fused", "module"])
def test_prune_names_attention_without_queries(kind):
    model, x = example(Attention(kind))
    with torch.no_grad():
        (model.mha.in_proj_weight[:2] if kind == "module" else model.q.weight).mul_(1e-9)
    with pytest.warns(UserWarning, match="no queries, no keys.*left in 1") as found:
        hf_px.prune(model, "magnitude", sparsity=0.3, batches=[x], keep_head=False)
    assert kind == "fused" or "mha" in str(found[-1].message)


def test_prune_says_nothing_while_queries_and_keys_are_left(recwarn):
    model, x = example(Attention())
    hf_px.prune(model, "synflow", sparsity=0.1, batches=[x], rounds=1)
    assert not [w for w in recwarn if "no queries" in str(w.message)]


@pytest.mark.parametrize("scope", ["layer", "erk"])
@pytest.mark.parametrize("scorer", ["px-path", "px", "synflow"])
def test_budgets_by_layer_keep_queries_and_keys_as_dense_as_the_values_beside_them(scorer, scope):
    model, x = example(Attention("module"))
    with torch.no_grad():
        model.mha.in_proj_weight[:4] *= 1e-6
    mask = hf_px.prune(model, scorer, sparsity=0.5, batches=[x], rounds=3, scope=scope)
    kept = mask.bits["mha.in_proj_weight"]
    assert abs(int(kept[:4].sum()) - 2 * int(kept[4:].sum())) <= 1
