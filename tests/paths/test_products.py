"""Products of two activations: each factor a recorded gate of the other, both ways added; squares, roots, maxima."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from support.path_ops import paths
from torch import nn
from torch.func import functional_call, jacrev, vmap

import hf_px
from hf_px.core.errors import UnsupportedModelError
from hf_px.paths import ABSOLUTE
from hf_px.paths.record_replay import RULES

X = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def halves(x):
    return x.chunk(2, -1)


def swap(x):
    return x.roll(1, -1)


# operation, and by hand what it is on squared paths: x² through a at the gate b², and through b at the gate a²
OPERATIONS = {
    "mul": (lambda x: x * swap(x), lambda x: 2 * x.square() * swap(x).square()),
    "mul_": (lambda x: (x + 0 * swap(x)).mul_(swap(x)), lambda x: 2 * x.square() * swap(x).square()),
    "glu by hand": (lambda x: torch.mul(*halves(x)), lambda x: 2 * torch.mul(*halves(x.square()))),
    "matmul": (lambda x: x @ x.mT, lambda x: 2 * x.square() @ x.square().mT),
    "bmm": (lambda x: torch.bmm(x, swap(x)), lambda x: 2 * torch.bmm(x.square(), swap(x).square())),
    "einsum": (lambda x: torch.einsum("nij,njk->nik", x, swap(x)), lambda x: 2 * x.square() @ swap(x).square()),
    # a/b: a at the gate 1/b, b at the gate a/b², as the derivative has it
    "div": (lambda x: x / (swap(x)), lambda x: 2 * x.square() / swap(x).square()),
    # activations: y/x is the gate
    "pow": (lambda x: x**2, lambda x: x.square() * x.square()),
    "square": (lambda x: x.square(), lambda x: x.square() * x.square()),
    "x times x": (lambda x: x * x, lambda x: x.square() * x.square()),
    "cube": (lambda x: x.pow(3), lambda x: x.pow(4) * x.square()),
    # a scale by hand: held
    "rsqrt": (lambda x: x * x.square().mean(-1, keepdim=True).rsqrt(),
              lambda x: x.square() / x.square().mean(-1, keepdim=True)),
    "sqrt": (lambda x: x / x.square().sum(-1, keepdim=True).sqrt(),
             lambda x: x.square() / x.square().sum(-1, keepdim=True)),
    "pow of a half": (lambda x: x * x.square().sum(-1, keepdim=True) ** -0.5,
                      lambda x: x.square() / x.square().sum(-1, keepdim=True)),
    "amax": (lambda x: x.amax(1), lambda x: x.square().gather(1, x.argmax(1, keepdim=True))[:, 0]),
    "amax kept": (lambda x: x.amax((1, 2), keepdim=True),
                  lambda x: torch.where(x == x.amax((1, 2), keepdim=True), x.square(), 0).sum((1, 2), keepdim=True)),
    "max": (lambda x: x.max(1)[0], lambda x: x.square().gather(1, x.argmax(1, keepdim=True))[:, 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_operation_on_squared_paths_by_hand(name):
    op, expected = OPERATIONS[name]
    torch.testing.assert_close(paths(op, X), expected(X))


@pytest.mark.parametrize(("op", "expected"), [
    (lambda x: x * swap(x), lambda x: x + swap(x)),
    (lambda x: x / swap(x), lambda x: x + swap(x)),
    (lambda x: x @ x.mT, lambda x: x.sum(-1, keepdim=True) + x.sum(-1).unsqueeze(-2)),
    (lambda x: x.amax(1), lambda x: x.sum(1)),
    (lambda x: x**2, lambda x: x),
])  # fmt: skip
def test_with_every_gate_open_both_sides_pass(op, expected):
    torch.testing.assert_close(paths(op, X, ABSOLUTE), expected(X.square()))


def test_a_factor_that_is_written_over_is_recorded_as_it_was():
    def op(x):
        a = torch.relu(x)
        y = a * swap(x)
        a.add_(1.0)
        return y

    torch.testing.assert_close(paths(op, X), 2 * torch.relu(X).square() * swap(X).square())


class Gated(nn.Module):
    """out((a s x) · (b s x)): a gated linear unit without its activation."""

    def __init__(self):
        super().__init__()
        self.s, self.a, self.b = (nn.Linear(2, 2, bias=False) for _ in range(3))
        self.out = nn.Linear(2, 1, bias=False)

    def forward(self, x):
        x = self.s(x)
        return self.out(self.a(x) * self.b(x))


def test_the_shares_are_the_exact_trace_with_either_factor_held_over_all_signs():
    """The trace of each way by torch.func, averaged over the signs of all weights on the way, the two ways added."""
    torch.manual_seed(0)
    model = Gated().double()
    x = torch.randn(3, 2, dtype=torch.float64)
    weights = {n: p.detach() for n, p in model.named_parameters()}
    gates = {"a": model.a(model.s(x)).detach(), "b": model.b(model.s(x)).detach()}

    def held(w, way):
        side = x @ w["s"].T @ w[way].T * gates["b" if way == "a" else "a"]
        return side @ w["out"].T

    scores = hf_px.score(model, "px-path", [x])
    expected = {n: torch.zeros_like(w) for n, w in weights.items()}
    for way in "ab":
        names = ["s", way, "out"]
        sizes = [weights[f"{n}.weight"].numel() for n in names]
        signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=sum(sizes))), dtype=torch.float64)
        drawn = {n: part.view(-1, *weights[f"{n}.weight"].shape) * weights[f"{n}.weight"].abs()
                 for n, part in zip(names, signs.split(sizes, 1))}  # fmt: skip
        jacobian = vmap(jacrev(lambda w, way=way: held(w, way)))(drawn)
        for n in names:
            j = jacobian[n].square().flatten(1, 2).sum(1).mean(0)  # over images and outputs, then over signs
            expected[f"{n}.weight"] += j * weights[f"{n}.weight"].square()
    for name, share in expected.items():
        torch.testing.assert_close(scores[name], share)


def test_the_shares_of_both_factors_are_those_of_the_exact_trace():
    """Without a layer before the product, ∂f/∂a holds b as it is: no average is needed."""
    torch.manual_seed(1)
    model = Gated().double()
    nn.init.eye_(model.s.weight)
    model.s.weight.requires_grad_(False)
    x = torch.randn(3, 2, dtype=torch.float64)
    weights = {n: p.detach() for n, p in model.named_parameters()}
    jacobian = jacrev(lambda w: functional_call(model, w, (x,)))(weights)
    scores = hf_px.score(model, "px-path", [x], exclude=["s.weight"])
    for name in ("a.weight", "b.weight"):
        exact = jacobian[name].square().sum((0, 1)) * weights[name].square()
        torch.testing.assert_close(scores[name], exact)


class Block(nn.Module):
    def __init__(self, op):
        super().__init__()
        self.stem, self.op, self.out = nn.Linear(4, 4), op, nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.op(self.stem(x)))


PRODUCTS = {
    "mul": lambda x: x * swap(x),
    "div": lambda x: x / swap(x),
    "matmul": lambda x: x @ (x.mT @ x),
    "bmm": lambda x: torch.bmm(x, torch.bmm(x.mT, x)),
    "einsum": lambda x: torch.einsum("nij,nkj->nik", x, x),
}
OTHERS = {
    "pow": lambda x: x**2,
    "square": lambda x: torch.relu(x).square(),
    "rsqrt": lambda x: x * x.square().mean(-1, keepdim=True).rsqrt(),
    "sqrt": lambda x: x / x.square().mean(-1, keepdim=True).sqrt(),
    "amax": lambda x: x - x.amax(1, keepdim=True),
    "max": lambda x: x - x.max(1, keepdim=True)[0],
}
# with every gate open a product needs nothing recorded
NEEDED = [(n, op, s) for n, op in PRODUCTS.items() for s in ("px", "px-path")]
NEEDED += [(n, op, s) for n, op in OTHERS.items() for s in ("px", "px-path", "synflow", "phew")]


@pytest.mark.parametrize(("name", "op", "scorer"), NEEDED)
def test_each_rule_is_needed(name, op, scorer, monkeypatch):
    torch.manual_seed(0)
    model, x = Block(op), torch.randn(2, 4, 4)
    scores = hf_px.score(model, scorer, [x])
    assert all(torch.isfinite(s).all() and s.any() for s in scores.values())
    for spelling in (name, f"__{name}__", f"true_{name}", f"__true{name}__"):
        monkeypatch.delitem(RULES, spelling, raising=False)
    with pytest.raises(UnsupportedModelError, match=name):
        hf_px.score(model, scorer, [x])


@pytest.mark.parametrize("scorer", ["px", "px-path", "synflow", "synflow-l2"])
def test_what_flows_in_flows_out_both_ways_through_a_gated_unit(scorer):
    torch.manual_seed(0)
    model, x = Gated().double(), torch.randn(3, 2, dtype=torch.float64)
    total = {name: float(s.sum()) for name, s in hf_px.score(model, scorer, [x]).items()}
    assert total["s.weight"] == pytest.approx(total["out.weight"])
    assert total["a.weight"] + total["b.weight"] == pytest.approx(total["out.weight"])


def test_a_product_of_three_activations_is_refused():
    model = Block(lambda x: torch.einsum("nij,nij,nij->nij", x, swap(x), x))
    with pytest.raises(UnsupportedModelError, match="einsum"):
        hf_px.score(model, "px-path", [torch.randn(2, 4, 4)])


def test_glu_holds_its_second_half():
    value, gate = halves(X)
    torch.testing.assert_close(paths(F.glu, X), value.square() * gate.sigmoid().square())
