"""Scorers that need a loss, a draw or the weights alone: laws, and oracles that share no code with hf_px."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import hf_px.scorers  # noqa: F401  registers them
from hf_px.core.allocate import Global
from hf_px.core.batches import Batches
from hf_px.core.forward import batch_statistics
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable
from hf_px.core.registry import scorers

HERE = ["random", "magnitude", "snip", "iter-snip", "force", "grasp", "ntk-sap", "prospr"]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Thousands of tiny convolutions: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class ConvNet(nn.Module):
    """Convolution, BatchNorm, dropout, a skip, a parameter of its own; smooth, so that differences are slopes."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.body = nn.Conv2d(4, 4, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(4, momentum=None)
        self.drop = nn.Dropout(dropout)
        self.token = nn.Parameter(torch.full((4, 1, 1), 0.3))
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        x = F.silu(self.bn1(self.stem(x)))
        x = x * self.token + F.silu(self.bn2(self.body(x)))
        return self.fc(self.drop(x).mean((2, 3)))


class Attention(nn.Module):
    """Fused attention and a hardsigmoid gate: neither has a second derivative in torch."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.gate = nn.Linear(4, 4)
        self.hard = nn.Hardsigmoid(inplace=True)
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        x = F.scaled_dot_product_attention(q, k, v) * self.hard(self.gate(x))
        return self.fc(x.mean(1))


def mlp():
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 4), nn.SiLU(), nn.Linear(4, 3))


def made(build, seed=0, **options):
    """A network in float64 whose every parameter is random, those that start at 0 or 1 too."""
    torch.manual_seed(seed)
    model = build(**options).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def batch(shape, seed, classes=3):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g, dtype=torch.float64), torch.randint(classes, shape[:1], generator=g)


def images(seed):
    return batch((6, 2, 5, 5), seed)


def random_mask(model, density=0.5, seed=0):
    g = torch.Generator().manual_seed(seed)
    return Mask({n: torch.rand(w.shape, generator=g) < density for n, w in prunable(model).items()})


def score(name, model, batches, mask=None, seed=0, **options):
    mask = mask or Mask.ones(prunable(model))
    data = None if batches is None else Batches(batches)
    return scorers[name].score(
        model, mask.weights(model), data, generator=torch.Generator().manual_seed(seed), **options
    )


# oracles: a deep copy in training mode, plain assignment, plain backward


def at(model, weights):
    """A copy of the model in training mode with these weights."""
    model = copy.deepcopy(model).train()
    with torch.no_grad():
        for name, w in weights.items():
            model.get_parameter(name).copy_(w)
    return model


def loss_at(model, weights, data):
    model = at(model, weights)
    return sum(F.cross_entropy(model(x), y) for x, y in data)


def gradient_at(model, weights, data):
    model = at(model, weights)
    sum(F.cross_entropy(model(x), y) for x, y in data).backward()
    return {name: model.get_parameter(name).grad for name in weights}


def entries(weights, per_tensor=6, seed=0):
    """Some (name, flat index) of every tensor."""
    g = torch.Generator().manual_seed(seed)
    for name, w in weights.items():
        for i in torch.randperm(w.numel(), generator=g)[:per_tensor].tolist():
            yield name, i


def slope(f, weights, name, i, h=1e-5):
    """∂f(θ ⊙ m)/∂m_i at m = 1, by central difference."""
    values = []
    for m in (1 + h, 1 - h):
        moved = {n: w.detach().clone() for n, w in weights.items()}
        moved[name].view(-1)[i] *= m
        values.append(float(f(moved).detach()))
    return (values[0] - values[1]) / (2 * h)


# magnitude and random


def test_magnitude_is_the_absolute_value_of_what_is_left():
    model = made(ConvNet)
    mask = random_mask(model)
    found = score("magnitude", model, None, mask)
    for name, w in prunable(model).items():
        assert torch.equal(found[name], torch.where(mask.bits[name], w, 0).abs())


def test_random_is_uniform_and_depends_on_the_seed_alone():
    model = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 100))
    first, again, other = (score("random", model, None, seed=s) for s in (1, 1, 2))
    nn.init.normal_(model[0].weight)
    moved = score("random", model, None, seed=1)
    for name in first:
        assert torch.equal(first[name], again[name])
        assert torch.equal(first[name], moved[name])
        assert not torch.equal(first[name], other[name])
    values = torch.cat([s.reshape(-1) for s in first.values()])
    assert values.min() >= 0 and values.max() < 1
    assert values.unique().numel() == values.numel()  # a tie would go to the first position
    deciles = torch.histc(values, 10, 0, 1) / len(values)
    assert (deciles - 0.1).abs().max() < 5 * (0.09 / len(values)) ** 0.5


def test_random_draws_in_order_of_name():
    model = made(ConvNet)
    weights = prunable(model)
    backwards = Mask.ones(dict(reversed(weights.items())))
    a, b = score("random", model, None), score("random", model, None, backwards)
    assert list(a) != list(backwards.bits)
    assert all(torch.equal(a[name], b[name]) for name in weights)


# snip, iter-snip, force


@pytest.mark.parametrize("name", ["snip", "iter-snip", "force"])
def test_snip_is_the_slope_of_the_loss_in_the_mask(name):
    model, data = made(ConvNet), [images(0), images(1)]
    found = score(name, model, data)
    theta = {n: w.detach() for n, w in prunable(model).items()}
    for layer, i in entries(theta):
        expected = abs(slope(lambda w: loss_at(model, w, data), theta, layer, i))
        assert float(found[layer].view(-1)[i]) == pytest.approx(expected, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("name", ["snip", "iter-snip", "force"])
def test_batches_are_summed_with_their_sign(name):
    model, a, b = made(ConvNet), images(0), images(1)
    theta = prunable(model)
    g_a, g_b = (gradient_at(model, theta, [data]) for data in (a, b))
    both, only_a, only_b = score(name, model, [a, b]), score(name, model, [a]), score(name, model, [b])
    for layer, w in theta.items():
        torch.testing.assert_close(both[layer], (w * (g_a[layer] + g_b[layer])).abs().detach())
        torch.testing.assert_close(only_a[layer], (w * g_a[layer]).abs().detach())
    assert any((only_a[layer] + only_b[layer] - both[layer]).max() > 1e-6 for layer in theta)  # signs did cancel


@pytest.mark.parametrize("name", ["snip", "iter-snip", "force"])
def test_the_gradient_is_that_of_the_pruned_network(name):
    model, data = made(ConvNet), [images(0)]
    mask = random_mask(model)
    theta = {n: w.detach() for n, w in prunable(model).items()}
    pruned = {n: torch.where(mask.bits[n], w, 0) for n, w in theta.items()}
    gradient = gradient_at(model, pruned, data)
    found = score(name, model, data, mask)
    for layer, bits in mask.bits.items():
        expected = (theta[layer] * gradient[layer]).abs()
        if name == "force":
            torch.testing.assert_close(found[layer], expected)
            assert (found[layer][~bits] > 0).any()  # a pruned weight may bid
        else:
            torch.testing.assert_close(found[layer], torch.where(bits, expected, 0))


def test_only_force_revives():
    assert [name for name in scorers if scorers[name].revives] == ["force"]
    model, data = made(ConvNet), [images(0), images(1)]
    full = Mask.ones(prunable(model))
    back = {}
    for name in ("iter-snip", "force"):
        mask, back[name] = full, 0
        for t in range(1, 9):
            scores = score(name, model, data, mask)
            after = Global()(scores, 0.2 ** (t / 8), full if scorers[name].revives else mask)
            back[name] += after.kept - (after & mask).kept
            mask = after
        assert mask.kept == round(0.2 * mask.total)
    assert back["iter-snip"] == 0
    assert back["force"] > 0


def test_another_loss_can_be_given():
    model, (x, y) = made(ConvNet), images(0)
    target = F.one_hot(y, 3).double()
    found = score("snip", model, [(x, target)], loss=F.mse_loss)
    theta = {n: w.detach() for n, w in prunable(model).items()}

    def f(weights):
        return F.mse_loss(at(model, weights)(x), target)

    for layer, i in entries(theta, per_tensor=2):
        assert float(found[layer].view(-1)[i]) == pytest.approx(abs(slope(f, theta, layer, i)), rel=1e-5, abs=1e-9)


# grasp


@pytest.mark.parametrize("temperature", [200.0, 1.0])
def test_grasp_is_theta_times_hessian_times_gradient(temperature):
    model, data = made(mlp), [batch((7, 5), s) for s in (0, 1)]
    theta = {n: w.detach() for n, w in prunable(model).items()}
    shapes = {n: w.shape for n, w in theta.items()}
    flat = torch.cat([w.reshape(-1) for w in theta.values()])

    def loss(v):
        parts = {n: p.view(s) for (n, s), p in zip(shapes.items(), v.split([s.numel() for s in shapes.values()]))}
        return sum(F.cross_entropy(functional_call(model, parts, (x,)) / temperature, y) for x, y in data)

    expected = flat * (torch.func.hessian(loss)(flat) @ torch.func.grad(loss)(flat))
    found = score("grasp", model, data, temperature=temperature)
    assert (expected < 0).any() and (expected > 0).any()
    torch.testing.assert_close(torch.cat([found[n].reshape(-1) for n in theta]), expected, rtol=1e-9, atol=1e-20)
    if temperature == 200.0:
        default = score("grasp", model, data)
        assert all(torch.equal(default[n], found[n]) for n in theta)


def test_grasp_keeps_what_the_gradient_norm_needs():
    """Shrinking weight i changes ‖g‖² at the rate -2 s_i: the lowest scores go, where the gradient gains most."""
    model, data = made(ConvNet), [images(0), images(1)]
    theta = {n: w.detach() for n, w in prunable(model).items()}

    def norm(weights):
        return sum(g.square().sum() for g in gradient_at(model, weights, data).values())

    found = score("grasp", model, data, temperature=1.0)
    for layer, i in entries(theta, per_tensor=4):
        expected = slope(norm, theta, layer, i) / 2
        assert float(found[layer].view(-1)[i]) == pytest.approx(expected, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("name", ["grasp", "prospr"])
def test_second_derivatives_through_fused_attention_and_hardsigmoid(name):
    model, data = made(Attention), [batch((3, 6, 4), 0)]
    theta = {n: w.detach() for n, w in prunable(model).items()}
    if name == "grasp":
        found = score("grasp", model, data, temperature=1.0)

        def f(weights):
            return sum(g.square().sum() for g in gradient_at(model, weights, data).values()) / 2
    else:
        found = score("prospr", model, data)

        def f(weights):
            return trained_loss(model, weights, data)

    for layer, i in entries(theta):
        mine, expected = float(found[layer].view(-1)[i]), slope(f, theta, layer, i)
        assert mine == pytest.approx(expected if name == "grasp" else abs(expected), rel=1e-4, abs=1e-9)


# prospr


def trained_loss(model, weights, data, steps=3, lr=0.1, momentum=0.0, mask=None):
    """The loss after `steps` steps of torch's own SGD on all parameters."""
    model = at(model, weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    walk = itertools.cycle(data)
    for _ in range(steps):
        x, y = next(walk)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if mask is not None:
            for name, bits in mask.bits.items():
                model.get_parameter(name).grad *= bits
        optimizer.step()
    x, y = next(walk)
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize(
    "options, batches",
    [({}, 2), ({}, 5), ({"steps": 2, "lr": 0.5, "momentum": 0.9}, 3), ({"steps": 1}, 1)],
    ids=["cycles", "more batches than steps", "momentum", "one batch"],
)
def test_prospr_is_the_slope_of_the_trained_loss_in_the_mask(options, batches):
    model, data = made(ConvNet), [images(s) for s in range(batches)]
    found = score("prospr", model, data, **options)
    theta = {n: w.detach() for n, w in prunable(model).items()}
    for layer, i in entries(theta, per_tensor=4):
        expected = slope(lambda w: trained_loss(model, w, data, **options), theta, layer, i)
        assert float(found[layer].view(-1)[i]) == pytest.approx(abs(expected), rel=1e-4, abs=1e-8)


def test_prospr_does_not_train_what_is_pruned():
    model, data = made(ConvNet), [images(0), images(1)]
    mask = random_mask(model)
    found = score("prospr", model, data, mask)
    pruned = {n: torch.where(mask.bits[n], w.detach(), 0) for n, w in prunable(model).items()}
    for layer, i in entries(pruned, per_tensor=4):
        expected = slope(lambda w: trained_loss(model, w, data, mask=mask), pruned, layer, i)
        assert float(found[layer].view(-1)[i]) == pytest.approx(abs(expected), rel=1e-4, abs=1e-8)
    assert all((found[n][~bits] == 0).all() for n, bits in mask.bits.items())


def test_prospr_without_a_step_is_snip():
    model, data = made(ConvNet), [images(0)]
    a, b = score("prospr", model, data, steps=0), score("snip", model, data)
    for layer in a:
        torch.testing.assert_close(a[layer], b[layer], rtol=1e-12, atol=1e-15)


# ntk-sap


def ntk_sap_draws(model, x, seed, index):
    """Input, weights, perturbations: what the documented order of draws gives for batch `index`."""
    first = torch.Generator().manual_seed(seed)
    this_round = int(torch.randint(2**62, (), generator=first))
    g = torch.Generator().manual_seed((this_round * 1_000_003 + index + 1) % (2**63 - 1))
    weights = prunable(model)
    noise = torch.randn(x.shape, generator=g, dtype=x.dtype)
    fresh = {}
    for n in sorted(weights):
        fan_in = weights[n][0].numel()
        fresh[n] = torch.empty(weights[n].shape, dtype=x.dtype).normal_(0, (2 / fan_in) ** 0.5, generator=g)
    delta = {n: torch.randn(fresh[n].shape, generator=g, dtype=x.dtype) for n in sorted(weights)}
    return noise, fresh, delta


def test_ntk_sap_is_the_slope_of_the_perturbed_output_in_the_mask():
    model, data, epsilon = made(ConvNet), [images(0)[0], images(1)[0]], 0.02
    mask = random_mask(model, 0.7)
    found = score("ntk-sap", model, data, mask, seed=3, epsilon=epsilon)
    bits = {n: b.double() for n, b in mask.bits.items()}

    plain = copy.deepcopy(model)
    with torch.no_grad():  # as if built anew; the token stays as it is
        for name, p in plain.named_parameters():
            if name.startswith("bn"):
                p.fill_(name.endswith("weight"))
            elif name.endswith("bias"):
                p.zero_()
    terms = []
    for index, x in enumerate(data):
        noise, fresh, delta = ntk_sap_draws(model, x, 3, index)
        still = at(plain, {n: fresh[n] * bits[n] for n in bits})
        still.bn1.momentum = still.bn2.momentum = 1.0
        still(noise)  # BatchNorm keeps the statistics of the masked network
        still.eval()

        def norm(m, still=still, noise=noise, fresh=fresh, delta=delta):
            here = functional_call(still, {n: fresh[n] * m[n] for n in m}, (noise,))
            there = functional_call(still, {n: (fresh[n] + epsilon * delta[n]) * m[n] for n in m}, (noise,))
            return float((here - there).square().sum().detach())

        terms.append(norm)

    h = 1e-5
    for layer, i in entries(bits, per_tensor=8):
        sides = []
        for sign in (1, -1):
            m = {n: b.clone() for n, b in bits.items()}
            m[layer].view(-1)[i] += sign * h
            sides.append(sum(term(m) for term in terms))  # with its sign, over batches
        expected = abs(sides[0] - sides[1]) / (2 * h) * float(bits[layer].view(-1)[i])
        assert float(found[layer].view(-1)[i]) == pytest.approx(expected, rel=1e-4, abs=1e-8)


def test_ntk_sap_sees_neither_weights_nor_data_but_the_rest_of_the_model():
    model = made(ConvNet)
    first = score("ntk-sap", model, [images(0)])
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, p in other.named_parameters():
            if name != "token":
                p.uniform_()
        other.bn1.running_mean.fill_(7)
    same = score("ntk-sap", other, [images(1)[0]])
    assert all(torch.equal(first[n], same[n]) for n in first)
    other.token.data *= 2
    assert any(not torch.allclose(first[n], s) for n, s in score("ntk-sap", other, [images(0)]).items())


def test_ntk_sap_draws_by_seed_and_by_call():
    model, data = made(ConvNet), [images(0)]
    first, again, other = (score("ntk-sap", model, data, seed=s) for s in (1, 1, 2))
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert all(not torch.equal(first[n], other[n]) for n in first)
    generator, mask = torch.Generator().manual_seed(1), Mask.ones(prunable(model))
    calls = [scorers["ntk-sap"].score(model, mask.weights(model), Batches(data), generator=generator) for _ in range(2)]
    assert all(torch.equal(first[n], calls[0][n]) for n in first)
    assert all(not torch.equal(first[n], calls[1][n]) for n in first)  # a new round, new weights


def test_ntk_sap_gives_a_branch_behind_a_zero_scale_its_scores():
    model = made(ConvNet)
    nn.init.zeros_(model.bn2.weight)  # as timm initialises the last norm of a block
    nn.init.zeros_(model.bn2.bias)
    assert (score("ntk-sap", model, [images(0)])["body.weight"] > 0).any()
    assert (score("snip", model, [images(0)])["body.weight"] == 0).all()


def test_ntk_sap_scores_no_pruned_weight():
    model = made(ConvNet)
    mask = random_mask(model)
    found = score("ntk-sap", model, [images(0)], mask)
    assert all((found[n][~bits] == 0).all() for n, bits in mask.bits.items())


def test_batch_statistics_are_those_of_the_batch():
    model, x = made(ConvNet), images(0)[0]
    found = batch_statistics(model, Mask.ones(prunable(model)).weights(model), Batches([x]).first())
    before = model.stem(x)
    after = model.body(F.silu(F.batch_norm(before, None, None, model.bn1.weight, model.bn1.bias, True)))
    for name, y in (("bn1", before), ("bn2", after)):
        torch.testing.assert_close(found[f"{name}.running_mean"], y.mean((0, 2, 3)).detach())
        torch.testing.assert_close(found[f"{name}.running_var"], y.var((0, 2, 3)).detach())
    assert len(found) == 4


# every scorer


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("density", [1.0, 0.5])
def test_leaves_no_trace(name, density):
    model = made(ConvNet, dropout=0.5).float().train()
    model.bn2.eval()
    model.fc.bias.requires_grad_(False)
    mask = random_mask(model, density)
    data = [(x.float(), y) for x, y in (images(0), images(1))]
    copies = [(x.clone(), y.clone()) for x, y in data]
    state = {n: t.clone() for n, t in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    flags = {n: m.training for n, m in model.named_modules()}
    torch.manual_seed(5)
    rng = torch.get_rng_state()
    found = score(name, model, data, mask)
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(t, state[n]) for n, t in model.state_dict().items())
    assert all(p is parameters[n] and p.grad is None for n, p in model.named_parameters())
    assert [n for n, p in model.named_parameters() if not p.requires_grad] == ["fc.bias"]
    assert {n: m.training for n, m in model.named_modules()} == flags
    assert (model.bn1.momentum, model.bn2.momentum) == (0.1, None)
    assert all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(data, copies))
    assert {n: s.shape for n, s in found.items()} == {n: w.shape for n, w in prunable(model).items()}
    assert all(torch.isfinite(s).all() and not s.requires_grad for s in found.values())


@pytest.mark.parametrize("name", HERE)
def test_a_module_under_two_names_is_left_alone_too(name):
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Tanh(), nn.Sequential(shared), nn.Linear(4, 3))
    weight, value = shared.weight, shared.weight.detach().clone()
    x, y = batch((5, 4), 0)
    score(name, model, [(x.float(), y)], random_mask(model))
    assert shared.weight is weight
    assert torch.equal(weight, value)


@pytest.mark.parametrize("name", ["snip", "iter-snip", "force", "grasp", "prospr"])
def test_dropout_is_off(name):
    data = [images(0)]
    wet, dry = (score(name, made(ConvNet, dropout=p), data) for p in (0.5, 0.0))
    assert all(torch.equal(wet[n], dry[n]) for n in wet)


@pytest.mark.parametrize("name", ["snip", "grasp", "prospr", "ntk-sap"])
def test_a_frozen_model_scores_like_any_other(name):
    model, data = made(ConvNet), [images(0)]
    trainable = score(name, model, data)
    frozen = score(name, model.requires_grad_(False), data)
    assert all(torch.equal(trainable[n], frozen[n]) for n in frozen)


@pytest.mark.parametrize(
    "name, option, words",
    [
        ("grasp", {"temperature": 0.0}, "temperature is 0.0"),
        ("ntk-sap", {"epsilon": 0.0}, "epsilon is 0.0"),
        ("prospr", {"steps": -1}, "steps is -1"),
    ],
)
def test_a_senseless_option_is_refused(name, option, words):
    with pytest.raises(ValueError, match=words):
        score(name, made(ConvNet), [images(0)], **option)


@pytest.mark.parametrize("name", ["snip", "iter-snip", "force", "grasp", "ntk-sap", "prospr"])
def test_empty_batches_are_refused(name):
    with pytest.raises(ValueError, match="`batches` is empty"):
        score(name, made(ConvNet), [])


@pytest.mark.parametrize("name", ["snip", "iter-snip", "force", "grasp", "ntk-sap", "prospr"])
def test_a_batch_too_small_for_batch_statistics_is_refused(name):
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        score(name, model, [(torch.ones(1, 4), torch.tensor([0]))])
    assert model.training and model[2].momentum == 0.1


def test_records_say_what_the_issue_asks():
    facts = {name: (scorers[name].needs, scorers[name].rounds) for name in HERE}
    assert facts == {
        "random": ("weights", 1),
        "magnitude": ("weights", 1),
        "snip": ("labels", 1),
        "iter-snip": ("labels", 100),
        "force": ("labels", 100),
        "grasp": ("labels", 1),
        "ntk-sap": ("shape", 100),
        "prospr": ("labels", 1),
    }
    assert set(scorers["grasp"].options) == {"loss", "temperature"}
    assert set(scorers["prospr"].options) == {"loss", "steps", "lr", "momentum"}
    assert set(scorers["ntk-sap"].options) == {"epsilon"}
