"""Multiply-adds against counts by hand; the network is not changed."""

from __future__ import annotations

import pytest
import timm
import torch
import torch.nn.functional as F
from support.common import state_of
from torch import Tensor, nn

from hf_px import Mask
from hf_px.analysis.cost import PRODUCTS, Cost, cost
from hf_px.analysis.latency import latency
from hf_px.analysis.layer_counts import live_bits
from hf_px.analysis.summary import summary
from hf_px.core.prunable import prunable
from hf_px.models.networks.resnet import resnet20


class Net(nn.Module):
    """Stride, groups, biases, dropout and BatchNorm; 2 x 8 x 8 in, 3 out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, stride=2, padding=1)  # out: 4 x 4 x 4
        self.norm = nn.BatchNorm2d(4)
        self.grouped = nn.Conv2d(4, 8, 3, groups=2, padding=1, bias=False)  # out: 8 x 4 x 4
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        return self.head(self.drop(F.relu(self.grouped(x)).mean((2, 3))))


HAND = {"first.weight": 4 * 16 * 2 * 9, "grouped.weight": 8 * 16 * 2 * 9, "head.weight": 8 * 3}


def dense(found: Cost) -> dict[str, int]:
    return {row.name: row.macs_dense for row in found.rows}


def test_dense_by_hand() -> None:
    model = Net()
    found = cost(model, input_size=(2, 8, 8))
    assert dense(found) == HAND and found.others == {}
    assert found.macs_dense == found.macs_sparse == sum(HAND.values())
    # weights, biases of first and head, scale and shift of the norm
    assert found.total == found.kept == found.live == 72 + 144 + 24
    assert found.parameters == 72 + 4 + 8 + 144 + 24 + 3
    assert (found.input_size, found.note) == ((2, 8, 8), "")


def test_a_batch_tells_the_shape_and_counts_once() -> None:
    assert dense(cost(Net(), batches=[(torch.randn(7, 2, 8, 8), torch.zeros(7).long())])) == HAND


def test_dead_weights_cost_nothing() -> None:
    """Channel 0 of `first` gets no weight, so what reads it in `grouped` is kept and dead."""
    model = Net()
    mask = Mask.ones(prunable(model))
    mask.bits["first.weight"][0] = False
    found = cost(model, mask, input_size=(2, 8, 8))
    rows = {row.name: row for row in found.rows}
    assert found.basis == "live"
    # group 0 is outputs 0 to 3, which read channels 0 and 1: 4 kernels of 9 are dead
    assert (rows["first.weight"].kept, rows["first.weight"].live) == (54, 54)
    assert (rows["grouped.weight"].kept, rows["grouped.weight"].live) == (144, 108)
    assert rows["first.weight"].macs_sparse == 3 * 16 * 2 * 9
    assert rows["grouped.weight"].macs_sparse == 16 * 108  # each weight is used once a position
    assert found.macs_sparse == 3 * 16 * 18 + 16 * 108 + 24
    assert found.macs_dense == sum(HAND.values())

    assert found.live == found.kept - (summary(model, mask, input_size=(2, 8, 8)).dead or 0)
    live, why = live_bits(model, mask, input_size=(2, 8, 8))
    assert live is not None and why == ""
    assert cost(model, mask, input_size=(2, 8, 8), live=live) == found
    assert cost(model, mask, batches=[torch.randn(3, 2, 8, 8)]) == found
    assert cost(model.to(torch.bfloat16), mask, input_size=(2, 8, 8)) == found


def test_an_excluded_layer_counts_in_full() -> None:
    model = Net()
    mask = Mask({"grouped.weight": torch.zeros(8, 2, 3, 3, dtype=torch.bool)})
    found = cost(model, mask, input_size=(2, 8, 8))
    assert found.others == {"first.weight": HAND["first.weight"], "head.weight": HAND["head.weight"]}
    assert found.macs_sparse == HAND["first.weight"] + HAND["head.weight"]
    assert "counted in full" in found.note and "first.weight" in found.note
    assert (found.total, found.kept) == (144, 0)


class Shared(nn.Module):
    """One module called twice, under two names; and its weight once more, by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.once = nn.Linear(5, 5)
        self.again = self.once
        self.tied = nn.Linear(5, 5, bias=False)
        self.tied.weight = self.once.weight
        self.out = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.linear(self.tied(self.again(self.once(x))), self.once.weight))


def test_a_shared_weight_is_one_row_and_pays_for_each_use() -> None:
    model = Shared()
    found = cost(model)  # the first linear layer tells the shape
    assert dense(found) == {"once.weight": 4 * 25, "out.weight": 10}
    assert found.parameters == 25 + 5 + 10 + 2 and found.total == 35
    mask = Mask({"once.weight": torch.eye(5, dtype=torch.bool), "out.weight": torch.ones(2, 5, dtype=torch.bool)})
    assert cost(model, mask).macs_sparse == 4 * 5 + 10


def test_parameters_that_lie_in_one_storage_are_told_apart() -> None:
    model = Net()
    flat = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    nn.utils.vector_to_parameters(flat, model.parameters())
    assert len({p.untyped_storage().data_ptr() for p in model.parameters()}) == 1
    assert dense(cost(model, input_size=(2, 8, 8))) == HAND


def attention(tokens: int, width: int) -> dict[str, int]:
    """Closed form: q, k and v of each token; q·k of each pair, and its weight times v; the projection."""
    return {"in": tokens * 3 * width**2, "pairs": 2 * tokens**2 * width, "out": tokens * width**2}


def test_attention_of_a_vision_transformer() -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=7)
    tokens, width = (32 // 16) ** 2 + 1, 192
    found = cost(model, input_size=(3, 32, 32))
    each, rows = attention(tokens, width), dense(found)
    for block in ("blocks.0", "blocks.1"):
        assert rows[f"{block}.attn.qkv.weight"] == each["in"]
        assert rows[f"{block}.attn.proj.weight"] == each["out"]
        assert rows[f"{block}.mlp.fc1.weight"] == rows[f"{block}.mlp.fc2.weight"] == tokens * 4 * width**2
    assert found.others == {PRODUCTS: 2 * each["pairs"]}
    assert rows["patch_embed.proj.weight"] == (tokens - 1) * width * 3 * 16**2
    assert rows["head.weight"] == 7 * width
    mask = Mask.ones(prunable(model))
    assert "products of two activations" in cost(model, mask, input_size=(3, 32, 32)).note


@pytest.mark.parametrize("fast", [True, False])
def test_multihead_attention_whose_weight_a_function_uses(fast: bool) -> None:
    """Under the parent module for torch's counter, and nowhere at all on the fast path, which eval mode would take."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        found = cost(layer, batches=[torch.randn(3, 5, 8)])
        assert torch.backends.mha.get_fastpath_enabled() is fast  # as it was
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    each = attention(5, 8)
    assert dense(found) == {
        "self_attn.in_proj_weight": each["in"], "self_attn.out_proj.weight": each["out"],
        "linear1.weight": 5 * 8 * 16, "linear2.weight": 5 * 8 * 16,
    }  # fmt: skip
    assert found.others == {PRODUCTS: each["pairs"]}


class Cross(nn.Module):
    """Keys and values of other widths: three projections in place of one."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = nn.Linear(8, 6), nn.Linear(8, 4)
        self.attend = nn.MultiheadAttention(8, 2, kdim=6, vdim=4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, self.keys(x), self.values(x))[0]


def test_attention_with_three_projections() -> None:
    found = cost(Cross(), batches=[torch.randn(2, 5, 8)])
    assert dense(found) == {
        "keys.weight": 5 * 48, "values.weight": 5 * 32, "attend.q_proj_weight": 5 * 64, "attend.k_proj_weight": 5 * 48,
        "attend.v_proj_weight": 5 * 32, "attend.out_proj.weight": 5 * 64,
    }  # fmt: skip
    assert found.others == {PRODUCTS: attention(5, 8)["pairs"]}


def test_a_layer_that_makes_its_weight_anew_is_charged() -> None:
    """timm's weight standardisation multiplies by a copy, which lies elsewhere in memory."""
    model = nn.Sequential(timm.layers.StdConv2d(2, 4, 3, padding=0), nn.Flatten(), nn.Linear(16, 2))
    found = cost(model, input_size=(2, 4, 4))
    assert dense(found) == {"0.weight": 4 * 4 * 18, "2.weight": 32} and found.others == {}


def test_resnet20_has_41_million() -> None:
    """16, 32 and 64 channels on 32, 16 and 8 pixels a side; shortcuts are 1 x 1, or none."""
    model = resnet20()
    found = cost(model, input_size=(3, 32, 32))
    by_hand = 32**2 * 9 * 3 * 16 + 6 * 32**2 * 9 * 16 * 16 + 64 * 10
    by_hand += 16**2 * 9 * (16 * 32 + 5 * 32 * 32) + 8**2 * 9 * (32 * 64 + 5 * 64 * 64)
    shortcuts = sum(16**2 * 16 * 32 if w.shape[0] == 32 else 8**2 * 32 * 64
                    for n, w in prunable(model).items() if w.dim() == 4 and w.shape[-1] == 1)  # fmt: skip
    assert found.macs_dense == by_hand + shortcuts
    assert 40.5e6 < found.macs_dense < 41.5e6 and found.others == {}


def test_the_network_is_left_as_it_was() -> None:
    model = Net().train()
    model.norm.eval()  # a frozen norm in a network that trains
    mask = Mask.ones(prunable(model))
    before = state_of(model)
    cost(model, mask, input_size=(2, 8, 8))
    latency({"one": model}, torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0)), seconds=0.0)
    assert state_of(model) == before
    assert not torch.nn.modules.module._global_forward_hooks


def test_after_an_error_too() -> None:
    model = Net().train()
    before = state_of(model)
    with pytest.raises(RuntimeError):
        cost(model, input_size=(5, 8, 8))
    assert state_of(model) == before and not torch.nn.modules.module._global_forward_pre_hooks


class Odd(nn.Module):
    """A running product has no rule, so live weights are unknown; `spare` is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.spare = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.cumprod(self.a(x), 1))


def test_nominal_density_where_liveness_is_unknown() -> None:
    model = Odd()
    mask = Mask.ones(prunable(model))
    mask.bits["a.weight"][:3] = False
    found = cost(model, mask)
    assert found.basis == "kept" and "dead weights are unknown" in found.note and found.live is None
    assert found.macs_sparse == 12 + 12
    assert "no multiply-adds were counted for spare.weight" in found.note


def test_without_a_shape() -> None:
    with pytest.raises(ValueError, match="Net declares no input size; pass `input_size`"):
        cost(Net())


def test_half_precision() -> None:
    assert dense(cost(Net().to(torch.bfloat16), input_size=(2, 8, 8))) == HAND


def test_a_mask_of_ones_counts_live_weights() -> None:
    model = Net()
    found = cost(model, Mask.ones(prunable(model)), input_size=(2, 8, 8))
    assert found.macs_dense == sum(HAND.values()) == sum(row.macs_dense for row in found.rows)
    assert found.basis == "live" and found.parameters == 255
