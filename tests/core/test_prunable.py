"""Prunable tensors: the weights of linear maps, found by type, named as in state_dict."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from hf_px.core.prunable import check_weights, prunable


class Odd(nn.Module):
    """Names that say the wrong thing, and tensors that belong to no linear map."""

    def __init__(self):
        super().__init__()
        self.bn = nn.Conv2d(3, 4, 3)
        self.conv = nn.BatchNorm2d(4)
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.embed = nn.Embedding(5, 4)
        self.norm = nn.LayerNorm(4)
        self.act = nn.PReLU(4)
        self.bias = nn.Linear(4, 2)


def test_type_decides_not_name():
    assert list(prunable(Odd())) == ["bn.weight", "bias.weight"]


@pytest.mark.parametrize(
    "layer, shape",
    [
        (nn.Linear(3, 2), (2, 3)),
        (nn.Bilinear(2, 3, 4), (4, 2, 3)),
        (nn.Conv1d(4, 2, 3), (2, 4, 3)),
        (nn.Conv2d(4, 6, 3, groups=2), (6, 2, 3, 3)),
        (nn.Conv3d(1, 2, 3), (2, 1, 3, 3, 3)),
        (nn.ConvTranspose2d(4, 2, 3), (4, 2, 3, 3)),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else "",
)
def test_every_linear_map(layer, shape):
    found = prunable(layer)
    assert list(found) == ["weight"] and tuple(found["weight"].shape) == shape
    assert found["weight"] is layer.weight


def test_attention_projections():
    same = prunable(nn.MultiheadAttention(4, 2))
    assert {n: tuple(w.shape) for n, w in same.items()} == {"in_proj_weight": (12, 4), "out_proj.weight": (4, 4)}
    apart = prunable(nn.MultiheadAttention(4, 2, kdim=3, vdim=5, add_bias_kv=True))
    assert set(apart) == {"q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"}


def test_names_and_tensors_are_those_of_the_model():
    model = timm.create_model("test_resnet")
    found, own = prunable(model), dict(model.named_parameters())
    assert all(w is own[n] for n, w in found.items())
    assert set(found) <= set(model.state_dict())
    # here, and not everywhere, linear maps are the tensors with two dimensions or more
    assert set(found) == {n for n, p in own.items() if p.dim() > 1}


def test_tokens_and_positions_of_a_vit_stay():
    model = timm.create_model("test_vit")
    found = prunable(model)
    assert {"pos_embed", "cls_token"}.isdisjoint(found)
    assert {"patch_embed.proj.weight", "head.weight"} <= set(found)


def test_a_shared_tensor_appears_once_under_its_first_name():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    assert list(prunable(model)) == ["0.weight", "1.weight"]
    layer = nn.Linear(2, 2)
    assert list(prunable(nn.Sequential(layer, nn.Sequential(layer)))) == ["0.weight"]


def test_a_weight_that_is_computed_is_left_alone():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    parametrizations.weight_norm(model[0])
    prune.identity(model[1], "weight")
    assert list(prunable(model)) == ["2.weight"]


def test_exclude():
    assert list(prunable(Odd(), exclude=["bn.weight"])) == ["bias.weight"]
    with pytest.raises(ValueError, match=r"`exclude`: conv\.weight is not a prunable tensor.*it has bn\.weight"):
        prunable(Odd(), exclude=["conv.weight"])
    with pytest.raises(ValueError, match="no prunable tensor"):
        prunable(nn.Linear(2, 2), exclude=["weight"])


def test_exclude_may_be_an_iterator():
    assert list(prunable(Odd(), exclude=iter(["bn.weight"]))) == ["bias.weight"]


def test_nothing_to_prune():
    with pytest.raises(ValueError, match="BatchNorm2d has no prunable tensor"):
        prunable(nn.BatchNorm2d(3))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_check_weights_names_what_is_not_finite(value):
    model = Odd()
    check_weights(model)
    with torch.no_grad():
        model.norm.bias[1] = value
    with pytest.raises(ValueError, match=r"norm\.bias: holds nan or inf"):
        check_weights(model)


def test_check_weights_refuses_the_meta_device():
    with pytest.raises(ValueError, match=r"1\.weight: on the meta device, so it has no values; load weights"):
        check_weights(nn.Sequential(nn.ReLU(), nn.Conv2d(1, 1, 1, device="meta")))
