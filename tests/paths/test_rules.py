"""The rules, one by one, against what each operation does; and the traps: hidden code, operations without a rule."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hf_px
from hf_px.core.batches import Batches
from hf_px.core.errors import UnsupportedModelError
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable
from hf_px.paths import (  # fmt: skip
    ABSOLUTE,
    ONES,
    PATHS,
    SQUARED,
    check_visible,
    edge_weights,
    live_weights,
    record,
    replay,
    ungated,
)


class Op(nn.Module):
    """A bare operation between two fixed linear layers, so that there is something to prune."""

    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, x):
        return self.op(x)


def paths(op, x, view=PATHS):
    """The operation replayed on x² with the gates recorded on x."""
    model, batch = Op(op), Batches([x]).first()
    _, tape = record(model, {}, batch, "batch")
    with torch.no_grad():
        flow = replay(model, {}, view, batch, x.square(), tape)
    return torch.ldexp(flow.values, torch.tensor(flow.exponent))


X = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

ACTIVATIONS = {
    "F.relu": F.relu, "torch.relu": torch.relu, "x.relu": lambda x: x.relu(), "nn.ReLU": nn.ReLU(),
    "F.relu in place": lambda x: F.relu(x.clone(), inplace=True), "x.relu_": lambda x: x.clone().relu_(),
    "nn.ReLU in place": lambda x: nn.ReLU(inplace=True)(x * 1.0), "x.clamp(min=0)": lambda x: x.clamp(min=0),
    "F.leaky_relu": F.leaky_relu, "nn.LeakyReLU": nn.LeakyReLU(0.2), "F.relu6": F.relu6, "nn.ReLU6": nn.ReLU6(),
    "F.hardtanh": F.hardtanh, "F.gelu": F.gelu, "gelu tanh": nn.GELU(approximate="tanh"), "F.silu": F.silu,
    "nn.SiLU in place": lambda x: nn.SiLU(inplace=True)(x * 1.0), "x * sigmoid(x)": lambda x: x * torch.sigmoid(x),
    "F.hardswish": F.hardswish, "nn.Hardswish": nn.Hardswish(), "F.elu": F.elu, "F.mish": F.mish, "tanh": torch.tanh,
    "nn.PReLU": nn.PReLU().double(),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_gate_is_y_over_x(name):
    """(a · x)² = f(x)²: the replayed square of each path is the square of the real output."""
    op = ACTIVATIONS[name]
    torch.testing.assert_close(paths(op, X), op(X).detach().square(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gates_are_not_negative_and_at_zero_the_derivative(name):
    x = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    assert torch.equal(paths(ACTIVATIONS[name], x), x)  # finite: 0/0 has been seen to
    assert (paths(ACTIVATIONS[name], X) >= 0).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_open_gates_let_everything_through(name):
    torch.testing.assert_close(paths(ACTIVATIONS[name], X, SQUARED), X.square())


POOLS = {
    "max": lambda x: F.max_pool2d(x, 2), "max padded": nn.MaxPool2d(3, 2, 1),
    "max dilated": nn.MaxPool2d(2, 1, dilation=2),
    "max ceil": nn.MaxPool2d(3, 2, ceil_mode=True), "max ceil padded": nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    "adaptive max": nn.AdaptiveMaxPool2d(3), "global max": lambda x: F.adaptive_max_pool2d(x, 1),
    "keywords": lambda x: F.max_pool2d(input=x, kernel_size=2, stride=2),
}  # fmt: skip


@pytest.mark.parametrize("name", POOLS)
def test_max_pooling_hands_on_the_winner(name):
    torch.testing.assert_close(paths(POOLS[name], X), POOLS[name](X).square())


@pytest.mark.parametrize("name", POOLS)
def test_max_pooling_with_open_gates_sums_its_window(name):
    """Count by hand: put a one at each place in turn; the sum of the outputs is how many windows hold it."""
    op = POOLS[name]
    x = torch.zeros(64, 1, 8, 8, dtype=torch.float64)
    x.view(64, 64).fill_diagonal_(1.0)
    winners = op(x)  # a one wins every window that holds it
    torch.testing.assert_close(paths(op, x, SQUARED), winners)


@pytest.mark.parametrize(
    "op",
    [
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(2),
        lambda x: x.mean((2, 3)),
        lambda x: 0.25 * x + x / 2,
        lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    ],
)
def test_constants_are_left_alone_in_g_and_h_and_squared_on_squared_paths(op):
    torch.testing.assert_close(paths(op, X, ONES), op(X.square()))
    torch.testing.assert_close(paths(op, X, SQUARED), op(X.square()))
    one = torch.zeros_like(X)
    one[:, :, 2, 3] = 3.0  # a single path: its square is the square of the output
    expected = 9 * (0.25**2 + 0.5**2) if op(torch.ones_like(X)).flatten()[0] == 0.75 else None
    got = paths(op, one)
    if expected is None:
        torch.testing.assert_close(got, op(one).square())
    else:  # two parallel paths, squared before they are added
        assert got[0, 0, 2, 3] == pytest.approx(expected)


NORMS = {
    "batch": nn.BatchNorm2d(4), "layer": nn.LayerNorm([8, 8]), "group": nn.GroupNorm(2, 4),
    "instance": nn.InstanceNorm2d(4, affine=True), "rms": nn.RMSNorm([8, 8]),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMS)
def test_normalisation_is_gamma_over_sigma(name):
    """y = γ/σ · (x - μ) + β: differences within a normalised group show γ/σ, computed here by torch itself."""
    norm = NORMS[name].double()
    for p in norm.parameters():
        nn.init.normal_(p, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        y = norm.train()(X)
        shift = norm.bias if getattr(norm, "bias", None) is not None else torch.zeros(())
        shift = shift.view(1, -1, 1, 1) if shift.dim() == 1 and name != "layer" else shift
        gain = norm.weight.view(1, -1, 1, 1) if norm.weight.dim() == 1 else norm.weight
        normal = (y - shift) / gain
        ratio = (normal[..., 1:, :] - normal[..., :-1, :]) / (X[..., 1:, :] - X[..., :-1, :])  # 1/σ
    factor = (gain * torch.cat([ratio[..., :1, :], ratio], -2)).square()
    torch.testing.assert_close(paths(norm, X), X.square() * factor, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(paths(norm, X, ONES), X.square())  # left out of g


def test_on_one_row_a_layer_norm_scales_by_the_mean_over_samples():
    norm = nn.LayerNorm([8, 8], elementwise_affine=False).double()
    model, batch = Op(norm), Batches([X]).first()
    _, tape = record(model, {}, batch, "batch")
    row = batch.row()
    h = replay(model, {}, SQUARED, row, torch.ones_like(row.x), tape)
    expected = 1 / (X.var((2, 3), unbiased=False, keepdim=True) + norm.eps)
    torch.testing.assert_close(h.values, expected.mean(0, keepdim=True).expand(1, 4, 8, 8))


@pytest.mark.parametrize("keepdim", [True, False])
def test_a_standard_deviation_by_hand_is_a_normalisation(keepdim):
    """x / std(x), as some models write it: on squared paths x² / σ², in h the mean over samples."""

    def op(x):
        std = x.std((2, 3), keepdim=keepdim)
        return x / (std if keepdim else std[..., None, None])

    sigma = X.std((2, 3), keepdim=True)
    torch.testing.assert_close(paths(op, X), X.square() / sigma.square())
    model, batch = Op(op), Batches([X]).first()
    _, tape = record(model, {}, batch, "batch")
    row = batch.row()
    h = replay(model, {}, SQUARED, row, torch.ones_like(row.x), tape)
    torch.testing.assert_close(h.values, (1 / sigma.square().mean(0, keepdim=True)).expand(1, 4, 8, 8))


@pytest.mark.parametrize("kind", ["fused", "explicit", "module", "module batch first", "masked"])
def test_attention_weights_are_gates_of_the_values(kind):
    """With the attention A held, out = A · V: on squared paths A² · V²."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    if kind in ("fused", "explicit", "masked"):
        bias = torch.randn(5, 5, dtype=torch.float64) if kind == "masked" else None

        def op(x):
            if kind == "explicit":
                return (x @ x.transpose(1, 2) / 8**0.5).softmax(-1) @ x
            return F.scaled_dot_product_attention(x, x, x, attn_mask=bias)

        logits = x @ x.mT / 8**0.5
        a = (logits if bias is None else logits + bias).softmax(-1)
        if kind == "explicit":
            # v and A·v: A is frozen, so the product is linear in v alone
            torch.testing.assert_close(paths(op, x), a.square() @ x.square())
        else:
            torch.testing.assert_close(paths(op, x), a.square() @ x.square())
        return
    first = kind.endswith("first")
    mha = nn.MultiheadAttention(8, 2, batch_first=first).double().eval()

    def op(x):
        return mha(x, x, x, need_weights=False)[0]

    inputs = x if first else x.transpose(0, 1).contiguous()
    _, a = mha(inputs, inputs, inputs, average_attn_weights=False)
    tokens = x.square()
    wv, wo = mha.in_proj_weight[16:].detach().square(), mha.out_proj.weight.detach().square()
    v = (tokens @ wv.T).view(2, 5, 2, 4).transpose(1, 2)
    expected = (a.square() @ v).transpose(1, 2).reshape(2, 5, 8) @ wo.T
    model, batch = nn.Module(), Batches([inputs]).first()
    model.mha = mha
    model.forward = op
    weights = Mask.ones(prunable(model)).weights(model)
    _, tape = record(model, weights, batch, "batch")
    flow = replay(model, edge_weights(weights, PATHS, torch.float64), PATHS, batch, inputs.square(), tape)
    got = flow.values if first else flow.values.transpose(0, 1)
    torch.testing.assert_close(got, expected)


class Block(nn.Module):
    """A DeepLab-style head: atrous branches, image pooling, upsampling, concatenation, residual."""

    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 3, 3, padding=2, dilation=2)
        self.b = nn.Conv2d(4, 3, 1)
        self.c = nn.Conv2d(4, 3, 1)
        self.join = nn.Conv2d(9, 4, 1)

    def forward(self, x):
        pooled = F.interpolate(F.relu(self.c(F.adaptive_avg_pool2d(x, 1))), size=x.shape[-2:], mode="bilinear")
        y = self.join(torch.cat([F.relu(self.a(x)), F.relu(self.b(x)), pooled], 1))
        return F.interpolate(x + y, scale_factor=2, mode="bilinear", align_corners=False)


@pytest.mark.parametrize("view", [ONES, SQUARED, PATHS, ABSOLUTE])
def test_replay_is_homogeneous_with_additive_terms_zeroed(view):
    """replay(4x) = 4 · replay(x) although the layers have biases: a vacuous pass would show here."""
    torch.manual_seed(0)
    model = Block().double()
    weights = Mask.ones(prunable(model)).weights(model)
    batch = Batches([X]).first()
    _, tape = record(model, weights, batch, "batch")
    edges = edge_weights(weights, view, torch.float64)
    one, four = (replay(model, edges, view, batch, c * X.square(), tape) for c in (1, 4))
    torch.testing.assert_close(four.values, 4 * one.values)
    assert not torch.allclose(model(2 * X), 2 * model(X))  # the network itself is not


class InPlace(nn.Module):
    """Writes into tensors that are read again: aliases of replay must not leak."""

    def __init__(self, careful):
        super().__init__()
        self.bn = nn.BatchNorm2d(4)
        self.conv = nn.Conv2d(4, 4, 1, bias=False)
        self.careful = careful

    def forward(self, x):
        x = self.conv(x)
        y = self.bn(x)
        y = F.relu(y.clone()) if self.careful else y.relu_()
        z = F.relu(x)
        gate = torch.sigmoid(x)
        y = y * gate
        gate.zero_()  # after its use: the recorded gate must not be the changed one
        if self.careful:
            z = z + y
        else:
            z += y
        return x + z  # x itself, which neither may have changed


@pytest.mark.parametrize("view", [ONES, SQUARED, PATHS])
def test_writing_in_place_changes_nothing(view):
    results = []
    for careful in (True, False):
        torch.manual_seed(0)
        model = InPlace(careful).double()
        weights = Mask.ones(prunable(model)).weights(model)
        batch = Batches([X]).first()
        _, tape = record(model, weights, batch, "batch")
        with torch.no_grad():
            results.append(
                replay(model, edge_weights(weights, view, torch.float64), view, batch, X.square(), tape).values
            )
    torch.testing.assert_close(*results)
    assert torch.equal(batch.x, X)


def test_deep_networks_stay_in_range_and_exact():
    """300 layers of width 64: float32 would overflow after 20 (64^300 = 2^1800); the exponent carries it."""
    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(300)])
    for p in model.parameters():
        nn.init.ones_(p)
    weights = Mask.ones(prunable(model)).weights(model)
    batch = Batches([torch.ones(2, 64)]).first()
    _, tape = record(model, weights, batch, "batch")
    flow = replay(model, edge_weights(weights, ONES, torch.float32), ONES, batch, batch.x, tape)
    assert flow.exponent + float(flow.values[0, 0].log2()) == 1800
    scores = hf_px.score(model, "px", [batch.x])
    for s in scores.values():
        assert torch.isfinite(s).all() and (s == s[0, 0]).all() and s[0, 0] > 0
    assert len({float(s[0, 0]) for s in scores.values()}) == 1  # flow is conserved, all weights alike


def test_small_weights_behind_a_huge_bound_do_not_overflow_on_the_way_back():
    """R of g is 2^840, h is 1e-9: the gradient divides by every small activation on its way."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(140)])
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.11)
    scores = hf_px.score(model, "px", [torch.ones(2, 64)])
    assert all(torch.isfinite(s).all() and (s > 0).all() for s in scores.values())


def test_an_operation_without_a_rule_is_named_with_its_module():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Op(lambda x: torch.cumprod(x, 1))
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(self.inner(x))

    with pytest.raises(UnsupportedModelError, match=r"inner \(Op\).*cumprod"):
        hf_px.score(Odd(), "px", [torch.randn(2, 4)])
    with pytest.raises(UnsupportedModelError, match="cumprod"):
        hf_px.score(Odd(), "synflow", [torch.randn(2, 4)])
    assert hf_px.prune(Odd(), "magnitude", sparsity=0.5, batches=[torch.randn(2, 4)]).kept == 4  # needs no paths


@pytest.mark.parametrize(
    "op",
    [
        lambda x: x.exp(),
        lambda x: x * x.flip(1),
        lambda x: x.sort(1)[0],
        lambda x: 1 / (1 + x.abs()),
        lambda x: x.pow(2),
        lambda x: x @ x.T @ x,
        lambda x: torch.where(x > 0, x, -x),
        lambda x: F.softplus(x),
        lambda x: F.interpolate(x[:, None], 8, mode="linear")[:, 0].log(),
    ],
)
def test_no_non_linear_operation_passes_silently(op):
    model = nn.Sequential(nn.Linear(4, 4), Op(op), nn.LazyLinear(2))
    x = torch.rand(3, 4)
    model(x)
    with pytest.raises(UnsupportedModelError, match="Op"):
        hf_px.score(model, "px", [x])


def test_control_flow_that_depends_on_the_data_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), Op(lambda x: x if x.sum() > 0 else -x), nn.Linear(4, 2))
    with pytest.raises(UnsupportedModelError, match="gt"):
        hf_px.score(model, "px", [torch.randn(2, 4)])


def test_scripted_and_checkpointed_code_is_refused():
    @torch.jit.script
    def hidden(x):
        return torch.relu(x)

    batch = Batches([torch.randn(2, 4)]).first()
    with pytest.raises(UnsupportedModelError, match="Python cannot intercept it"):
        check_visible(nn.Sequential(nn.Linear(4, 4), Op(lambda x: hidden(x))), batch)
    with pytest.raises(UnsupportedModelError, match="0 is scripted"):
        check_visible(nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.ReLU()), batch)
    model = nn.Sequential(nn.Linear(4, 4))
    model.grad_checkpointing = True
    with pytest.raises(UnsupportedModelError, match="checkpointing"):
        check_visible(model, batch)


def test_custom_autograd_functions_are_refused():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 17

    model = nn.Sequential(nn.Linear(4, 4), Op(Square.apply), nn.Linear(4, 2))
    with pytest.raises(UnsupportedModelError, match="Square"):
        hf_px.score(model, "px", [torch.randn(2, 4)])


def test_ungated_leaves_activations_out():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)).double()
    x = X[0, 0, :, :4]
    with ungated():
        y = model(x)
    torch.testing.assert_close(y, x @ model[0].weight.T @ model[2].weight.T)


# live weights


def test_live_weights_by_hand():
    """2-3-2; unit 0 of the middle has no way out, unit 1 no way in."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    first = torch.tensor([[1, 1], [0, 0], [1, 0]], dtype=torch.bool)
    second = torch.tensor([[0, 1, 1], [0, 1, 0]], dtype=torch.bool)
    live = live_weights(model, Mask({"0.weight": first, "2.weight": second}), Batches([torch.ones(1, 2)]).first())
    assert live["0.weight"].tolist() == [[False, False], [False, False], [True, False]]
    assert live["2.weight"].tolist() == [[False, False, True], [False, False, False]]


def test_queries_and_keys_are_live_although_their_path_score_is_zero():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x):
            return self.out(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)).mean(1))

    model, x = Head(), torch.randn(2, 3, 4)
    scores = hf_px.score(model, "px", [x])
    assert (scores["q.weight"] == 0).all() and (scores["v.weight"] > 0).all()
    mask = Mask.ones(prunable(model))
    assert all(live.all() for live in live_weights(model, mask, Batches([x]).first()).values())
    # without queries the attention is uniform: values still get through, keys no longer matter
    mask = Mask({**mask.bits, "q.weight": torch.zeros(4, 4, dtype=torch.bool)})
    live = live_weights(model, mask, Batches([x]).first())
    assert live["v.weight"].all() and not live["k.weight"].any()
