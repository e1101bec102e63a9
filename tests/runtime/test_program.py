"""Every operation of a plan gives what torch gives in float64: any geometry, any density, sparse and dense."""

from __future__ import annotations

import math
import operator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.sparse import dense, difference, exact, program_of_ops, programs_of, prune_, run, sparse, trained_
from torch import nn

from hf_px.runtime.geometry import Geometry
from hf_px.runtime.graph import ELEMENTWISE, Layer, Pool, Ref, TorchOp
from hf_px.runtime.layout import Layout

pairs = st.tuples(st.integers(1, 4), st.integers(1, 4))
CLAMPS = {"none": (-math.inf, math.inf), "relu": (0.0, math.inf), "relu6": (0.0, 6.0), "hardtanh": (-0.5, 0.25)}


@st.composite
def convolutions(draw):
    """(layer, tensors, x, residual or None): a convolution with all that can be fused into it."""
    kernel, stride = draw(st.tuples(st.integers(1, 5), st.integers(1, 5))), draw(pairs)
    dilation = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    padding = draw(st.tuples(st.integers(0, 7), st.integers(0, 7)))
    if draw(st.booleans()):  # as most networks have it: as many pixels out as in, over the stride
        padding = tuple((k - 1) * d // 2 for k, d in zip(kernel, dilation))
        stride = draw(st.sampled_from([(1, 1), (1, 1), (2, 2)]))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    inner, outer = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    if draw(st.integers(0, 4)) == 0:  # depthwise
        groups, inner, outer = draw(st.integers(2, 7)), 1, draw(st.integers(1, 2))
    size = draw(st.tuples(st.integers(1, 21), st.integers(1, 21)))
    out = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in zip(size, padding, dilation, kernel, stride)]
    assume(min(out) > 0)

    g = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    rows = groups * outer
    weight = torch.randn(rows, inner, *kernel, generator=g)
    weight *= torch.rand(weight.shape, generator=g) < draw(st.sampled_from([0, 0.02, 0.1, 0.3, 0.7, 1]))
    weight[draw(st.integers(0, rows - 1))] *= draw(st.sampled_from([0, 1]))  # an output channel without a weight
    tensors = {"w": weight}
    bias = draw(st.booleans())
    if bias:
        tensors["b"] = torch.randn(rows, generator=g)
    norm = None
    if draw(st.booleans()):
        tensors |= {"mean": torch.randn(rows, generator=g), "var": torch.rand(rows, generator=g) + 0.1}
        affine = draw(st.booleans())
        if affine:
            tensors |= {"gamma": torch.randn(rows, generator=g), "beta": torch.randn(rows, generator=g)}
        norm = ("gamma" if affine else None, "beta" if affine else None, "mean", "var", 1e-3)
    x = torch.randn(draw(st.integers(1, 5)), groups * inner, *size, generator=g)
    residual = draw(st.sampled_from([None, None, "r"]))
    low, high = CLAMPS[draw(st.sampled_from(sorted(CLAMPS)))]
    layer = Layer(
        "y", "h", "w", "b" if bias else None, norm, stride, padding, dilation, groups, residual, low, high
    )  # fmt: skip
    r = torch.randn(1, rows, *out, generator=g) if residual else None
    return layer, tensors, x, r


def expected_of(layer, tensors, x, residual):
    """The layer's operations one by one, in float64."""
    t = {name: tensor.double() for name, tensor in tensors.items()}
    y = F.conv2d(x, t["w"], t.get("b"), layer.stride, layer.padding, layer.dilation, layer.groups)
    if layer.norm:
        y = F.batch_norm(y, t["mean"], t["var"], t.get("gamma"), t.get("beta"), eps=layer.norm[4])
    y = y if residual is None else y + residual.double()
    return y.clamp(layer.low, layer.high)


def sum_of_sizes(layer, tensors, x, residual):
    """The layer with every term of its sums made positive: rounding is relative to this, not to what is left of it."""
    sizes = {name: -t.abs() if name == "mean" else t if name == "var" else t.abs() for name, t in tensors.items()}
    unclamped = replace(layer, low=-math.inf, high=math.inf)
    return expected_of(unclamped, sizes, x.abs(), None if residual is None else residual.abs())


def close(found, expected, sizes):
    assert found.shape == expected.shape
    return bool(((found.double() - expected).abs() <= 1e-6 * sizes.max() + 1e-30).all())


def fused(layer, tensors, x, residual, choose, more=(), shapes=None):
    """The layer behind an operation of torch, so that its input comes as a tensor; the residual is a constant."""
    y = expected_of(layer, tensors, x.double(), residual)
    known = {"x": (1, *x.shape[1:]), "h": (1, *x.shape[1:]), "y": (1, *y.shape[1:]), "r": (1, *y.shape[1:])}
    ops = [TorchOp("h", "aten.mul.Tensor", [Ref("x"), 2.0])]
    if residual is not None:
        tensors = {**tensors, "c": residual}
        ops.append(TorchOp("r", "aten.mul.Tensor", [Ref("c"), 1.0]))
    return program_of_ops([*ops, layer, *more], {**known, **(shapes or {})}, tensors, choose)


@settings(max_examples=500)
@given(convolutions(), st.integers(0, 3))
def test_sparse_convolutions(case, turn):
    layer, tensors, x, residual = case
    program = fused(*case, sparse(turn))
    assert program.is_native(layer) and len(program.steps) >= 1
    doubled = (layer, tensors, 2 * x.double(), residual)
    assert close(run(program, x), expected_of(*doubled), sum_of_sizes(*doubled))


@settings(max_examples=40)
@given(convolutions())
def test_dense_convolutions(case):
    layer, tensors, x, residual = case
    program = fused(*case, dense)
    assert not program.steps
    doubled = (layer, tensors, 2 * x.double(), residual)
    assert close(run(program, x), expected_of(*doubled), sum_of_sizes(*doubled))


@settings(max_examples=40)
@given(convolutions(), st.integers(2, 5))
def test_threads_share_rows_without_a_gap(case, threads):
    """The rows of each step, one thread after another: every row once."""
    program = fused(*case, sparse())
    steps = program.step_array(threads)
    for i, step in enumerate(program.steps):
        bounds = program._arrays[-len(program.steps) :][i]
        assert steps[i][8] == bounds.ctypes.data
        assert bounds[0] == 0 and bounds[-1] == len(step.work) and (bounds[1:] >= bounds[:-1]).all()


@settings(max_examples=60)
@given(convolutions())
def test_all_tile_sizes_give_the_same_bits(case):
    x = case[2]
    found = [run(fused(*case, sparse(turn)), x) for turn in range(4)]
    assert all(torch.equal(found[0], other) for other in found[1:])


@settings(max_examples=100)
@given(convolutions())
def test_borders_stay_zero(case):
    """A second layer reads the border of the first; an arena that was used before gives the bits of a new one."""
    layer, tensors, x, residual = case
    y = expected_of(layer, tensors, 2 * x.double(), residual)
    tensors["v"] = torch.linspace(-1, 1, 2 * y.shape[1] * 25).view(2, y.shape[1], 5, 5)
    second = Layer("z", "y", "v", stride=(1, 1), padding=(2, 2))
    program = fused(layer, tensors, x, residual, sparse(), [second], {"z": (1, 2, *y.shape[2:])})
    arena = program.new_arena()
    run(program, 1e6 * torch.ones_like(x), arena)
    found = run(program, x, arena)
    assert torch.equal(found, run(program, x))
    sizes = F.conv2d(sum_of_sizes(layer, tensors, 2 * x.double(), residual), tensors["v"].double().abs(), padding=2)
    assert close(found, F.conv2d(y, tensors["v"].double(), padding=2), sizes)


@st.composite
def linears(draw):
    g = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    tokens = draw(st.sampled_from([(), (1,), (7,), (16,), (33,), (3, 5), (2, 3, 4)]))
    inner, outer = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    weight = torch.randn(outer, inner, generator=g)
    weight *= torch.rand(weight.shape, generator=g) < draw(st.sampled_from([0, 0.05, 0.5, 1]))
    bias = torch.randn(outer, generator=g) if draw(st.booleans()) else None
    x = torch.randn(draw(st.integers(1, 5)), *tokens, inner, generator=g)
    residual = torch.randn(1, *tokens, outer, generator=g) if draw(st.booleans()) else None
    return weight, bias, x, residual, *CLAMPS[draw(st.sampled_from(sorted(CLAMPS)))]


@settings(max_examples=150)
@given(linears(), st.integers(0, 3), st.booleans())
def test_linear_layers_on_vectors_and_on_tokens(case, turn, in_kernel):
    weight, bias, x, residual, low, high = case
    tensors, ops = {"w": weight}, []
    if bias is not None:
        tensors["b"] = bias
    if residual is not None:
        tensors["c"] = residual
        ops = [TorchOp("r", "aten.mul.Tensor", [Ref("c"), 1.0])]
    layer = Layer("y", "x", "w", "b" if bias is not None else None, residual="r" if ops else None, low=low, high=high)
    out = (1, *x.shape[1:-1], len(weight))
    shapes = {"x": (1, *x.shape[1:]), "y": out, "r": out}
    program = program_of_ops([*ops, layer], shapes, tensors, sparse(turn) if in_kernel else dense)
    assert bool(program.steps) is in_kernel
    bias, residual = (torch.zeros(1) if t is None else t for t in (bias, residual))
    y = F.linear(x.double(), weight.double()) + bias + residual
    sizes = F.linear(x.double().abs(), weight.double().abs()) + bias.abs() + residual.abs()
    assert close(run(program, x), y.clamp(low, high), sizes)


@settings(max_examples=150)
@given(
    kernel=pairs, stride=pairs, dilation=st.sampled_from([(1, 1), (1, 1), (2, 1), (2, 3)]), data=st.data(),
    size=st.tuples(st.integers(1, 21), st.integers(1, 21)), channels=st.integers(1, 6),
)  # fmt: skip
def test_max_pooling(kernel, stride, dilation, data, size, channels):
    """The kernel's maximum has no rounding: the same bits as torch."""
    padding = tuple(data.draw(st.integers(0, k // 2)) for k in kernel)
    out = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in zip(size, padding, dilation, kernel, stride)]
    assume(min(out) > 0)
    x = torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(0)).relu()
    expected = F.max_pool2d(x, kernel, stride, padding, dilation)
    assume(bool(torch.isfinite(expected).all()))  # a window of padding alone
    shapes = {"x": (1, *x.shape[1:]), "y": (1, *expected.shape[1:])}
    program = program_of_ops([Pool("y", "x", kernel, stride, padding, dilation)], shapes, {}, sparse())
    assert torch.equal(run(program, x), expected)


@pytest.mark.parametrize("where", range(9))
def test_max_pooling_of_nan(where):
    """A window with nan gives nan, wherever in it nan stands."""
    x = torch.rand(1, 2, 9, 9)
    x[0, 0, 3 + where // 3, 3 + where % 3] = math.nan
    x[0, 1, 2, 2] = math.inf
    program = program_of_ops(
        [Pool("y", "x", (3, 3), (1, 1), (1, 1), (1, 1))], {"x": (1, 2, 9, 9), "y": (1, 2, 9, 9)}, {}, sparse()
    )
    assert torch.equal(run(program, x).nan_to_num(-1, 2), F.max_pool2d(x, 3, 1, 1).nan_to_num(-1, 2))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("clamp", sorted(CLAMPS))
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_inf_of_the_input_come_out_as_in_torch(stride, clamp, bad):
    """Of a layer that keeps all weights. One that is pruned multiplies nothing by its zeros."""
    g = torch.Generator().manual_seed(0)
    weight, x = torch.randn(4, 3, 3, 3, generator=g), torch.randn(1, 3, 9, 9, generator=g)
    x[0, 1, 4, 4] = bad
    low, high = CLAMPS[clamp]
    layer = Layer("y", "x", "w", None, None, (stride, stride), (1, 1), low=low, high=high)
    expected = F.conv2d(x, weight, None, stride, 1).clamp(low, high)
    program = program_of_ops([layer], {"x": tuple(x.shape), "y": tuple(expected.shape)}, {"w": weight}, sparse())
    arena = program.new_arena()
    found = run(program, x, arena)
    assert torch.equal(found.isnan(), expected.isnan()) and torch.equal(found.isinf(), expected.isinf())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert torch.isfinite(run(program, torch.zeros_like(x), arena)).all()  # nothing of it is left in the arena


ACTIVATIONS = {
    "gelu": nn.GELU(), "gelu-tanh": nn.GELU(approximate="tanh"), "silu": nn.SiLU(), "hardswish": nn.Hardswish(),
    "sigmoid": nn.Sigmoid(), "tanh": nn.Tanh(), "elu": nn.ELU(), "leaky": nn.LeakyReLU(0.1), "mish": nn.Mish(),
    "softplus": nn.Softplus(), "relu6": nn.ReLU6(), "prelu": nn.PReLU(), "hardtanh": nn.Hardtanh(-0.3, 0.4),
    "above zero": nn.Hardtanh(0.5, 1.0),
}  # fmt: skip


class Activations(nn.Module):
    """Each one reads the same convolution, so that none is fused, and a convolution reads what it makes."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 4, 3, padding=1)
        self.acts = nn.ModuleList(ACTIVATIONS.values())

    def forward(self, x):
        x = self.a(x)
        return torch.stack([self.b(act(x)) for act in self.acts], 1)


def test_activations():
    torch.manual_seed(0)
    model, x = prune_(Activations(), 0.4).eval(), torch.randn(1, 3, 7, 9)
    expected = exact(model, x)
    for program in programs_of(model, (3, 7, 9), sparse(), dense):
        found = run(program, x)
        for name, ours, theirs in zip(ACTIVATIONS, found[0], expected[0]):
            assert difference(ours, theirs) < 1e-5, name


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_what_runs_on_borders_maps_zero_to_zero(name):
    """With the arguments that it has by default."""
    function = operator.attrgetter(name)(torch.ops.aten)
    assert function(torch.zeros(3)).eq(0).all()


class Block(nn.Module):
    """Two branches with norms, a residual, a pool, tokens: what networks are made of."""

    def __init__(self, act, width=6):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.deep = nn.Sequential(
            nn.Conv2d(width, 2 * width, 1), nn.BatchNorm2d(2 * width), act,
            nn.Conv2d(2 * width, 2 * width, 3, padding=2, dilation=2, groups=2 * width), act,
            nn.Conv2d(2 * width, width, 1, bias=False), nn.BatchNorm2d(width, affine=False),
        )  # fmt: skip
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        x = self.pool(self.stem(x))
        x = torch.relu(self.deep(x) + x)
        x = x.flatten(2).transpose(1, 2)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return self.head(x.mean(1))


@pytest.mark.parametrize("density", [0, 0.1, 0.5, 1])
@pytest.mark.parametrize("size", [(17, 22), (32, 32)])
def test_a_network_of_all_kinds(density, size):
    torch.manual_seed(1)
    model = prune_(trained_(Block(nn.ReLU6())), density)
    x = torch.randn(3, 3, *size)
    expected = exact(model, x)
    odd, even = (lambda geometry, op, n=n: sparse()(geometry, op) * (len(op.out) % 2 == n) for n in (0, 1))
    for program in programs_of(model, (3, *size), sparse(), sparse(1), dense, odd, even):
        assert difference(run(program, x), expected) < 1e-4


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 8), st.integers(0, 8))
def test_tiles_cover_a_plane_and_end_before_the_next(height, width, above, gap):
    layout = Layout(height, width, above, gap)
    assert layout.tile_sizes()
    for vectors in layout.tile_sizes():
        covered = -(-layout.vectors // vectors) * vectors * 16
        assert layout.positions <= covered <= layout.pitch and covered <= len(layout.mask)
    assert layout.pitch >= layout.start + layout.positions
    assert int((layout.mask != 0).sum()) == height * width


def test_one_border_for_all_values_of_a_size():
    """So that each reader finds its zeros, and buffers are shared."""
    layers = [
        Layer("y", "x", "w", stride=(1, 1), padding=(2, 2), dilation=(2, 2)),
        Layer("z", "y", "v", stride=(1, 1), padding=(0, 3)),
    ]
    shapes = {"x": (1, 2, 8, 8), "y": (1, 2, 8, 8), "z": (1, 2, 8, 8), "w": (2, 2, 3, 3), "v": (2, 2, 1, 7)}
    program = program_of_ops(layers, shapes, {"w": torch.ones(2, 2, 3, 3), "v": torch.ones(2, 2, 1, 7)}, sparse())
    assert isinstance(program.geometry, Geometry)
    assert program.geometry.layouts == {(8, 8): Layout(8, 8, 2, 3)}
