"""What is fused, what must not be, and what is refused: never a wrong result."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.sparse import dense, difference, exact, programs_of, prune_, sparse, trained_
from torch import nn

import hf_px
from hf_px.core.errors import UnsupportedModelError
from hf_px.runtime.graph import Layer, Pool, TorchOp, export, reads


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn, self.linear = nn.BatchNorm2d(4), nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(1, 1))
        self.token = nn.Parameter(torch.ones(1, 4))


def net(forward):
    """A model of Base's layers with this forward pass."""
    torch.manual_seed(0)
    kind = type(forward.__name__, (Base,), {"forward": forward})
    return prune_(trained_(kind()), 0.6)


def graph_of(forward):
    return export(net(forward), torch.zeros(1, 3, 8, 8))


# Fusion


def whole_block(self, x):
    x = self.a(x)
    return torch.relu(self.bn(self.c(x)) + x)


def residual_first(self, x):
    x = self.a(x)
    return F.relu6(x + self.bn(self.c(x)))


def in_place(self, x):
    x = self.a(x)
    y = self.bn(self.c(x))
    y += x
    return F.relu_(y)


@pytest.mark.parametrize("forward", [whole_block, residual_first, in_place])
def test_convolution_norm_residual_and_relu_are_one_layer(forward):
    first, last = graph_of(forward).ops
    assert isinstance(last, Layer) and last.norm and last.residual == first.out == last.x and last.low == 0
    assert last.high == (6 if forward is residual_first else float("inf"))


def tokens(self, x):
    y = torch.relu(self.linear(x))
    return torch.relu(self.linear(y) + y)


def test_linear_residual_and_relu_are_one_layer():
    first, last = graph_of(tokens).ops
    assert isinstance(last, Layer) and last.stride is None and last.residual == first.out and last.clamps


def pools(self, x):
    x = F.max_pool2d(torch.relu(self.a(x)), 3, 2, 1)
    return F.max_pool2d(self.b(x), 2), F.max_pool2d(x, 2, ceil_mode=True), F.max_pool2d(x, 2)


def test_a_pool_runs_natively_where_zeros_are_no_greater_than_values():
    ops = graph_of(pools).ops
    assert [type(op) for op in ops if not isinstance(op, Layer)] == [Pool, TorchOp, TorchOp, Pool]


# each of these has a trap: a value with two readers, with another name, or written by a later operation


def add_to_itself(self, x):
    x = self.a(x)
    return x + x


def add_two_convolutions(self, x):
    x = self.a(x)
    return torch.relu(self.b(x) + self.c(x))


def add_earlier_to_later(self, x):
    x = self.a(x)
    y = self.b(x)
    z = self.c(x)
    return torch.relu(y) + z, y


def read_twice(self, x):
    x = self.a(x)
    return torch.relu(x) * self.bn(x) + self.b(x)


def returned_before_relu(self, x):
    x = self.a(x)
    y = self.bn(x)
    return x, y, torch.relu(y)


def clone_is_read(self, x):
    x = self.a(x)
    return torch.relu(x.clone()) + x


def clone_is_added(self, x):
    x = self.a(x)
    return x + x.clone()


def detached_twice(self, x):
    x = self.a(x)
    return torch.relu(x.detach().detach()) * x


def scaled_add(self, x):
    x = self.a(x)
    return torch.add(self.b(x), x, alpha=2)


def broadcast_add(self, x):
    x = self.a(x)
    return self.b(x) + x.mean((2, 3), keepdim=True)


def one_weight_twice(self, x):
    x = self.b(torch.relu(self.b(self.a(x))))
    return torch.relu(x)


def one_weight_in_a_product(self, x):
    return self.a(x) * self.a.weight.sum()


def relu_of_relu6(self, x):
    return F.hardtanh(torch.relu(self.a(x)), -0.5, 0.5)


def norm_after_relu(self, x):
    return self.bn(torch.relu(self.a(x)))


def norm_twice(self, x):
    return self.bn(self.bn(self.a(x)))


def linear_along_a_row(self, x):
    return self.linear(torch.relu(self.a(x)))


def image_without_batch(self, x):
    return torch.stack([self.b(torch.relu(self.a(image))) for image in x])


def image_in_parts(self, x):
    parts = torch.cat([x[:, :, :4], x[:, :, 4:]])
    return torch.cat(torch.relu(self.c(self.a(parts))).chunk(2), 2)


def a_view_outlives_its_buffer(self, x):
    x = self.a(x)
    view = x.transpose(2, 3)
    for _ in range(3):
        x = self.b(x)
    return view + x


def flat(self, x):
    return self.a(x).flatten(1)


def without_gradients(self, x):
    with torch.no_grad():
        x = self.a(x)
    return self.b(x)


TRAPS = (
    whole_block, residual_first, in_place, tokens, pools, add_to_itself, add_two_convolutions, add_earlier_to_later,
    read_twice, returned_before_relu, clone_is_read, clone_is_added, detached_twice, scaled_add, broadcast_add,
    one_weight_twice, one_weight_in_a_product, relu_of_relu6, norm_after_relu, norm_twice, linear_along_a_row,
    image_without_batch, image_in_parts, a_view_outlives_its_buffer, flat, without_gradients,
)  # fmt: skip


def check_order(graph):
    """Values are made before they are read."""
    known = {*graph.inputs, *graph.tensors, *graph.constants}
    for op in graph.ops:
        assert set(reads(op)) <= known, op
        known.add(op.out)
    assert set(graph.outputs) <= known


@pytest.mark.parametrize("forward", TRAPS)
def test_fused_or_not_the_result_is_torch_s(forward):
    """Also after a second call, which uses the same buffers; the first one's results stay as they were."""
    model = net(forward)
    x, other = torch.randn(2, 1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    expected = exact(model, x)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for program in programs_of(model, (3, 8, 8), sparse(), dense):
        check_order(program.graph)
        arena = program.new_arena()
        with torch.inference_mode():
            program.run(other, arena)
            found = program.run(x, arena)
            program.run(other, arena)
        assert len(found) == len(expected)
        assert all(difference(ours, theirs) < 1e-5 for ours, theirs in zip(found, expected))


# Refusals


def control_flow(self, x):
    return self.a(x) if x.sum() > 0 else -self.a(x)


def sum_of_the_batch(self, x):
    return self.a(x).sum((0, 2, 3))


def a_number(self, x):
    return self.a(x), 3


def nothing_beside(self, x):
    return self.a(x), None


def counts_calls(self, x):
    self.count += 1
    return self.a(x)


def changes_its_input(self, x):
    x.mul_(2)
    return self.a(x)


def norm_in_training(self, x):
    self.bn.train()
    return self.bn(self.a(x))


REFUSALS = {
    control_flow: "control_flow cannot be exported by torch.export.*data-dependent",
    sum_of_the_batch: r"shape \(4,\): without one row per image",
    a_number: "returns 3",
    nothing_beside: "returns None",
    counts_calls: "changes count",
    changes_its_input: "changes x",
    norm_in_training: "changes bn.running_mean",
}


@pytest.mark.parametrize("forward", REFUSALS)
def test_what_cannot_be_run_is_refused_by_its_reason(forward):
    with pytest.raises(UnsupportedModelError, match=REFUSALS[forward]):
        hf_px.fast(net(forward), input_size=(3, 8, 8), progress=False)


def centred_batch(self, x):
    x = self.a(x)
    return x - x.mean(0, keepdim=True)


def norm_of_the_batch(self, x):
    return F.batch_norm(self.a(x), None, None, training=True)


def first_of_the_batch(self, x):
    return self.a(x[:1])


def a_parameter(self, x):
    return self.a(x), self.token


@pytest.mark.parametrize("forward", [centred_batch, norm_of_the_batch, first_of_the_batch, a_parameter])
def test_a_model_that_mixes_images_is_refused_with_the_first_batch(forward):
    """One image does not show it."""
    fast = hf_px.fast(net(forward), input_size=(3, 8, 8), progress=False)
    for _ in range(2):
        with pytest.raises(UnsupportedModelError, match="other results for single images than for a batch of"):
            fast(torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
