"""px, px-path, synflow and synflow-l2 against paths enumerated one by one; the bound against the exact NTK."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.path_oracle import Answer, Net
from torch import nn
from torch.func import functional_call, jacrev

import hf_px


class Mlp(nn.Module):
    """Two to four layers; `skip` runs around the middle, `bias` moves the gates."""

    def __init__(self, widths, bias=False, skip=False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=bias) for a, b in itertools.pairwise(widths))
        self.skip = skip

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            y = layer(x)
            if i < len(self.layers) - 1:
                y = F.relu(y)
            x = y + x if self.skip and 0 < i < len(self.layers) - 1 else y
        return x

    def oracle(self, params):
        net = Net(params)
        x = net.input(self.layers[0].in_features)
        for i, layer in enumerate(self.layers):
            bias = None if layer.bias is None else layer.bias.detach().numpy()
            y = net.linear(x, f"layers.{i}.weight", bias)
            if i < len(self.layers) - 1:
                y = net.relu(y)
            x = net.add(y, x) if self.skip and 0 < i < len(self.layers) - 1 else y
        return net, x


class Cnn(nn.Module):
    """conv, relu, pool, conv with a skip, relu, fc."""

    def __init__(self, pool, norm=False, stride=1, dilation=1):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 2, bias=False, stride=stride)
        self.norm = nn.BatchNorm2d(2) if norm else nn.Identity()
        self.conv2 = nn.Conv2d(2, 2, 3, padding=dilation, dilation=dilation, bias=False)
        self.pool = {"average": nn.AvgPool2d(2), "max": nn.MaxPool2d(2)}[pool]
        self.kind = {"average": "sum", "max": "max"}[pool]
        self.fc = nn.Linear(2, 2, bias=False)
        self.stride, self.dilation = stride, dilation

    def forward(self, x):
        x = self.pool(torch.relu(self.norm(self.conv1(x))))
        x = nn.functional.relu(self.conv2(x)) + x
        return self.fc(x.mean((2, 3)))

    def oracle(self, params, factors=None, shifts=None):
        net = Net(params)
        x = net.conv(net.input(1, 5, 5), "conv1.weight", stride=self.stride)
        if factors is not None:
            x = net.scale(x, factors, shifts)
        x = net.pool(net.relu(x), 2, self.kind)
        x = net.add(net.relu(net.conv(x, "conv2.weight", pad=self.dilation, dilation=self.dilation)), x)
        return net, net.linear(net.pool(x, x.shape[1], "sum").ravel(), "fc.weight")


def weights_of(model):
    return {n: p.detach().numpy().copy() for n, p in model.named_parameters() if p.dim() > 1}


NETS = {
    "two layers": (lambda: Mlp([3, 4, 2]), (3,)),
    "three layers with bias": (lambda: Mlp([3, 3, 3, 2], bias=True), (3,)),
    "four layers with skip": (lambda: Mlp([2, 3, 3, 3, 2], skip=True), (2,)),
    "skip and bias": (lambda: Mlp([2, 3, 3, 2], bias=True, skip=True), (2,)),
    "convolution, average pool": (lambda: Cnn("average"), (1, 5, 5)),
    "convolution, max pool": (lambda: Cnn("max"), (1, 5, 5)),
    "atrous convolution": (lambda: Cnn("max", dilation=2), (1, 5, 5)),
    "strided convolution": (lambda: Cnn("average", stride=2), (1, 5, 5)),
}


@pytest.fixture(params=NETS, ids=lambda name: name.replace(" ", "-"))
def case(request):
    make, shape = NETS[request.param]
    torch.manual_seed(3)
    model = make().double()
    if request.param == "strided convolution":
        shape = (1, 5, 5)
    x = torch.randn(4, *shape, dtype=torch.float64)
    net, out = model.oracle(weights_of(model))
    answer = Answer(net, out, x.numpy())
    # the oracle computes the network itself first: otherwise it proves nothing
    for sample, expected in zip(x.numpy(), model(x).detach().numpy()):
        values, _ = net.run(sample)
        np.testing.assert_allclose([values[u] for u in np.ravel(out)], expected, rtol=1e-12, atol=1e-12)
    return model, x, answer


@pytest.mark.parametrize("scorer", ["px", "px-path", "synflow", "synflow-l2"])
def test_every_weight_has_the_share_that_its_paths_add_up_to(case, scorer):
    model, x, answer = case
    expected = getattr(answer, scorer.replace("-", "_"))()
    scores = hf_px.score(model, scorer, [x])
    assert set(scores) == set(expected)
    for name, s in scores.items():
        np.testing.assert_allclose(s.numpy(), expected[name], rtol=1e-9, atol=1e-12, err_msg=f"{scorer} {name}")


def exact_trace(model, x):
    weights = {n: p.detach() for n, p in model.named_parameters() if p.dim() > 1}
    rest = {n: p.detach() for n, p in model.named_parameters() if p.dim() <= 1}
    jacobian = jacrev(lambda w: functional_call(model, {**w, **rest}, (x,)))(weights)
    return sum(float(j.square().sum()) for j in jacobian.values())


def bound_of(model, scores):
    """Σ_j ∂R/∂θ_j² = Σ_j S_j / θ_j²."""
    weights = dict(model.named_parameters())
    return sum(float((s / weights[n].detach().square()).sum()) for n, s in scores.items())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("make", [lambda: Mlp([3, 4, 2]), lambda: Mlp([3, 3, 3, 3, 2], skip=True), lambda: Cnn("max"),
                                  lambda: Cnn("average")])  # fmt: skip
def test_the_bound_bounds_the_trace_of_the_exact_ntk(make, seed):
    torch.manual_seed(seed)
    model = make().double()
    x = torch.randn(3, *((1, 5, 5) if isinstance(model, Cnn) else (3,)), dtype=torch.float64)
    trace = exact_trace(model, x)
    px = bound_of(model, hf_px.score(model, "px", [x]))
    path = bound_of(model, hf_px.score(model, "px-path", [x]))
    assert trace <= px * (1 + 1e-12)
    assert path <= px * (1 + 1e-12)  # path by path before summing is never more


def test_both_factors_are_the_frobenius_norms_of_the_paper():
    torch.manual_seed(0)
    model = Mlp([3, 4, 2]).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    answer = Answer(*model.oracle(weights_of(model)), x.numpy())
    j_v, j_theta = answer.path_activation(), answer.path_jacobian()
    # equation 5 to 6: the product of the two is the gradient, so its norm is the trace
    np.testing.assert_allclose(np.square(j_v @ j_theta).sum(), exact_trace(model, x), rtol=1e-10)
    # equation 7, output by output
    np.testing.assert_allclose(np.square(j_v).sum(), sum(answer.G(k) for k in range(2)), rtol=1e-10)
    bound = bound_of(model, hf_px.score(model, "px", [x]))
    per_output = 0.0
    every = [k for k, paths in enumerate(answer.paths) for _ in paths]
    for k in range(2):
        columns = np.array(every) == k
        per_output += np.square(j_v[:, columns]).sum() * np.square(j_theta[columns]).sum()
    np.testing.assert_allclose(bound, per_output, rtol=1e-9)
    assert bound <= np.square(j_v).sum() * np.square(j_theta).sum() * (1 + 1e-12)
    path = bound_of(model, hf_px.score(model, "px-path", [x]))
    np.testing.assert_allclose(path, (np.square(j_v).sum(0) * np.square(j_theta).sum(1)).sum(), rtol=1e-9)


def test_px_path_is_the_expected_trace_over_weight_signs():
    """Gates held (a linear network), every combination of signs: the mean of the exact traces."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.AvgPool1d(1), nn.Linear(2, 2, bias=False)).double()
    x = torch.randn(3, 2, dtype=torch.float64)
    path = bound_of(model, hf_px.score(model, "px-path", [x]))
    weights = [p for p in model.parameters()]
    sizes = [p.detach().abs().clone() for p in weights]
    traces = []
    for signs in itertools.product((-1.0, 1.0), repeat=8):
        s = torch.tensor(signs, dtype=torch.float64)
        for p, size, part in zip(weights, sizes, s.split(4)):
            p.data = size * part.view(2, 2)
        traces.append(exact_trace(model, x))
    np.testing.assert_allclose(path, np.mean(traces), rtol=1e-10)


def test_normalisation_is_an_edge_at_the_statistics_of_the_masked_batch():
    """By hand: σ of this batch behind the masked first layer, squared in h and left out of g."""
    torch.manual_seed(2)
    model = Cnn("max", norm=True).double()
    nn.init.uniform_(model.norm.weight, 0.5, 1.5)
    nn.init.normal_(model.norm.bias)
    model.norm.running_var.uniform_(0.5, 2.0)
    model.norm.running_mean.normal_()
    x = torch.randn(4, 1, 5, 5, dtype=torch.float64)
    y = F.conv2d(x, model.conv1.weight).detach()
    gamma, beta, eps = model.norm.weight.detach(), model.norm.bias.detach(), model.norm.eps
    for norm, mean, var in (
        ("batch", y.mean((0, 2, 3)), y.var((0, 2, 3), unbiased=False)),
        ("running", model.norm.running_mean, model.norm.running_var),
    ):
        factors = gamma / (var + eps).sqrt()
        shifts = beta - mean * factors
        net, out = model.oracle(weights_of(model), factors.numpy(), shifts.numpy())
        answer = Answer(net, out, x.numpy())
        for scorer in ("px", "px-path"):
            scores = hf_px.score(model, scorer, [x], norm=norm)
            expected = getattr(answer, scorer.replace("-", "_"))()
            for name, s in scores.items():
                np.testing.assert_allclose(s.numpy(), expected[name], rtol=1e-9, err_msg=f"{scorer} {norm} {name}")


def test_batches_add_up_each_with_its_own_gates():
    torch.manual_seed(4)
    model = Mlp([3, 4, 2]).double()
    a, b = torch.randn(2, 3, 3, dtype=torch.float64)
    both = hf_px.score(model, "px", [a, b])
    one, two = hf_px.score(model, "px", [a]), hf_px.score(model, "px", [b])
    together = hf_px.score(model, "px", [torch.cat([a, b])])  # no normalisation: the split does not matter
    for name in both:
        torch.testing.assert_close(both[name], one[name] + two[name], rtol=1e-12, atol=0)
        torch.testing.assert_close(both[name], together[name], rtol=1e-12, atol=0)
