"""scope="channel": the best channels stay, coupled ones together, at the density that was asked for, and shrink removes
all of the others. Multiply-adds are counted by torch's own counter, ranks by numpy."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import timm
import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import hf_px
from hf_px.channels.shrink import shrunk
from hf_px.core.prunable import prunable


def plain(*widths: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in zip((3, *widths), widths):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 4)).eval()


def cut(model: nn.Module, **how: object) -> tuple[nn.Module, hf_px.Mask]:
    """(the smaller network, its mask)"""
    size = how.pop("input_size", (3, 16, 16))
    mask = hf_px.prune(model, how.pop("scorer", "magnitude"), input_size=size, progress=False, **how)
    smaller, left, _ = shrunk(model, mask, input_size=size)
    return smaller, left


def macs(model: nn.Module, size: tuple[int, ...] = (3, 16, 16)) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.randn(1, *size))
    return counter.get_total_flops() // 2


def weights(model: nn.Module) -> int:
    return sum(w.numel() for w in prunable(model).values())


@pytest.mark.parametrize("density", [0.7, 0.4, 0.1])
def test_a_density_of_weights_and_of_multiply_adds(density: float) -> None:
    """At most what was asked for, and one more channel would be too much: each is less than 3 % of these networks."""
    model = plain(32, 48, 48)
    by_weights, _ = cut(model, scope="channel", sparsity=1 - density)
    by_macs, _ = cut(model, scope="channel", of="macs", sparsity=1 - density)
    assert density - 0.05 < weights(by_weights) / weights(model) <= density
    assert density - 0.05 < macs(by_macs) / macs(model) <= density


def test_the_best_channels_stay() -> None:
    """Without couplings a channel's score is the mean of its rows; the ranking is of numpy."""
    model, own = plain(32, 48, 48), {"0.weight": 0, "3.weight": 3, "6.weight": 6}
    smaller, _ = cut(model, scope="channel", sparsity=0.5)
    means = {name: np.abs(model[i].weight.detach().numpy()).mean((1, 2, 3)) for name, i in own.items()}
    kept = {name: smaller[i].out_channels for name, i in own.items()}
    ranked = sorted((value, name) for name, values in means.items() for value in values)
    removed = [name for _, name in ranked[: 128 - sum(kept.values())]]
    assert kept == {name: len(values) - removed.count(name) for name, values in means.items()}
    best = np.sort(np.argsort(-means["3.weight"])[: kept["3.weight"]])
    first = np.sort(np.argsort(-means["0.weight"])[: kept["0.weight"]])
    assert torch.equal(smaller[3].weight, model[3].weight[torch.from_numpy(best)][:, torch.from_numpy(first)])


def test_every_scorer_and_every_round() -> None:
    x = [(torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4)]
    model = plain(12, 12)
    for scorer in hf_px.list_scorers():
        few = {"phew": {"walks": 8, "walkers": 4}, "prospr": {"steps": 1}}.get(scorer, {})
        mask = hf_px.prune(model, scorer, scope="channel", sparsity=0.5, rounds=2, batches=x, progress=False, **few)
        smaller, left, _ = shrunk(model, mask, input_size=(3, 16, 16))
        assert left.sparsity == 0 and 0.35 < weights(smaller) / weights(model) <= 0.5, scorer


@pytest.mark.parametrize("multiple", [4, 16])
def test_groups_leave_widths_that_are_multiples(multiple: int) -> None:
    smaller, left = cut(plain(32, 44, 48), scope=f"channel:{multiple}", of="macs", sparsity=0.6)
    widths = [smaller[i].out_channels for i in (0, 3, 6)]
    assert sum(widths) < 124 and all(width % multiple == 0 or width == 44 for width in widths) and left.sparsity == 0


def test_a_basic_block_keeps_one_width_along_its_stream() -> None:
    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=4, zero_init_last=False).eval()
    smaller, left = cut(model, scope="channel", of="macs", sparsity=0.5, input_size=(3, 64, 64))
    assert left.sparsity == 0
    for stage in (smaller.layer1, smaller.layer2, smaller.layer3, smaller.layer4):
        assert len({block.conv2.out_channels for block in stage}) == 1


def vits() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=8
    )
    return {
        "timm": timm.create_model(
            "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=32, depth=2, num_heads=4
        ),
        "transformers": transformers.ViTForImageClassification(config),
    }


@pytest.mark.parametrize("kind", ["timm", "transformers"])
def test_attention_loses_whole_heads(kind: str) -> None:
    model = vits()[kind].eval()
    names = [n for n in prunable(model) if "attn" in n or "attention" in n]
    with torch.no_grad():  # the last two heads of the first block are the weakest by far, other heads the strongest
        for name in names:
            model.get_parameter(name).mul_(100)
        for name in names[:1] if kind == "timm" else names[:3]:
            model.get_parameter(name).view(-1, 4, 8, 32)[:, 2:] *= 1e-3
    size = (3, 16, 16)
    smaller, left = cut(model, scope="channel", of="macs", sparsity=0.3, input_size=size)
    projection = next(iter({n: w for n, w in prunable(smaller).items() if n in names}.values()))
    assert left.sparsity == 0 and projection.shape[0] == (3 * 16 if kind == "timm" else 16)
    attention = smaller.blocks[0].attn if kind == "timm" else smaller.vit.layers[0].attention
    assert getattr(attention, "num_heads", None) == 2 or getattr(attention, "num_attention_heads", None) == 2
    for width in (prunable(smaller)[n].shape[0] for n in names):
        assert width % 8 == 0


def test_excluded_layers_keep_their_channels() -> None:
    smaller, _ = cut(plain(32, 48, 48), scope="channel", sparsity=0.3, exclude=["3.weight"])
    assert (smaller[0].out_channels, smaller[3].out_channels) == (32, 48) and smaller[6].out_channels < 48


def test_a_density_that_no_channels_meet_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"`sparsity` 0.999 cannot be met by whole channels: .* is the most"):
        hf_px.prune(plain(6, 6), "magnitude", scope="channel", sparsity=0.999, input_size=(3, 8, 8), progress=False)
    with pytest.raises(ValueError, match="declares no input size"):
        hf_px.prune(plain(6, 6), "magnitude", scope="channel", progress=False)


def test_half_is_the_default() -> None:
    model = plain(32, 48, 48)
    mask = hf_px.prune(model, "magnitude", scope="channel", input_size=(3, 16, 16), progress=False)
    assert 0.45 < 1 - mask.sparsity <= 0.5
    assert mask == hf_px.prune(copy.deepcopy(model), "magnitude", scope="channel", sparsity=0.5, input_size=(3, 8, 8))


def test_groups_wider_than_every_layer_are_named() -> None:
    with pytest.raises(ValueError, match="`scope` channel:64: no layer has more than 64 channels that could go"):
        hf_px.prune(plain(32, 48), "magnitude", scope="channel:64", input_size=(3, 8, 8), progress=False)


def test_a_starved_layer_is_named() -> None:
    """Scores of one layer are far below the others', so that the ranking takes nearly all of its channels."""
    model = plain(32, 48, 48)
    with torch.no_grad():
        model[3].weight.mul_(1e-3)
    with pytest.warns(UserWarning, match=r"few channels are left in 1 of 4 layers \(3.weight \(\d of 48\)\)"):
        hf_px.prune(model, "magnitude", scope="channel", sparsity=0.92, input_size=(3, 8, 8), progress=False)


def test_what_went_is_what_torch_counts() -> None:
    """Channels, weights, multiply-adds and bytes, before and after."""
    model = plain(32, 48, 48)
    mask = hf_px.prune(model, "magnitude", scope="channel", of="macs", input_size=(3, 16, 16), progress=False)
    smaller, _, removal = shrunk(model, mask, input_size=(3, 16, 16))
    networks = (model, smaller)
    assert removal.macs == tuple(macs(each) for each in networks)
    assert removal.weights == tuple(weights(each) for each in networks)
    assert removal.channels == tuple(sum(len(w) for w in prunable(each).values()) for each in networks)
    assert removal.bytes == tuple(sum(t.nbytes for t in each.state_dict().values()) for each in networks)
