import json
import math
from pathlib import Path

import pytest
import timm.data
import torch
from safetensors.torch import load_file
from torch import nn

from hf_px.models import MODELS, resnet20
from hf_px.prunable import prunable


def _seeded(seed: int, **kwargs: int) -> nn.Module:
    return resnet20(generator=torch.Generator().manual_seed(seed), **kwargs)


def test_resnet20_has_the_papers_weights() -> None:
    weights = prunable(_seeded(0))
    assert len(weights) == 22
    assert sum(w.numel() for w in weights.values()) == 270_896


def test_names_and_shapes_are_those_of_the_reference(shared: Path) -> None:
    reference = json.loads((shared / "reference/params.json").read_text())
    assert {name: list(w.shape) for name, w in prunable(_seeded(0)).items()} == reference["prunable"]
    # all else too, but for the reference's identity shortcuts: they multiply by ones, ours do nothing
    state = load_file(shared / "reference/resnet20_seed0_init.safetensors")
    unexpected = resnet20().load_state_dict(state, strict=False).unexpected_keys
    assert unexpected == [f"blocks.{i}.shortcut.weight" for i in (0, 1, 2, 4, 5, 7, 8)]
    assert all(bool((state[name] == 1).all()) for name in unexpected)


def test_weights_are_kaiming_normal() -> None:
    model = _seeded(0)
    for name, w in prunable(model).items():
        w = w.detach()
        sigma = math.sqrt(2 / w[0].numel())  # fan_in
        # the deviation of n normal numbers is off by σ/√2n, give or take: five times that is a bug
        assert abs(float(w.std(correction=0)) / sigma - 1) < 5 / math.sqrt(2 * w.numel()), name
        assert abs(float(w.mean())) < 5 * sigma / math.sqrt(w.numel()), name
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert bool((module.weight == 1).all() and (module.bias == 0).all())
            assert bool((module.running_mean == 0).all() and (module.running_var == 1).all())
    assert bool((model.fc.bias == 0).all())


def test_weights_come_from_the_generator_alone() -> None:
    torch.manual_seed(1)
    first = _seeded(3).state_dict()
    torch.manual_seed(2)
    again, other = _seeded(3).state_dict(), _seeded(4).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["conv.weight"], other["conv.weight"])


@pytest.mark.parametrize(("num_classes", "in_chans"), [(10, 3), (100, 3), (7, 1)])
def test_shapes_through_the_network(num_classes: int, in_chans: int) -> None:
    model = _seeded(0, num_classes=num_classes, in_chans=in_chans).eval()
    sizes = []
    for i in (0, 3, 6):
        model.blocks[i].register_forward_hook(lambda module, args, output: sizes.append(tuple(output.shape[1:])))
    assert model(torch.randn(2, in_chans, 32, 32)).shape == (2, num_classes)
    assert sizes == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]


def test_shortcuts_carry_the_signal() -> None:
    """With the residual branches at zero, only stem, shortcuts and head are left: still a function of x."""
    model = _seeded(0).eval()
    with torch.no_grad():
        for block in model.blocks:
            block.conv2.weight.zero_()
    x = torch.randn(2, 3, 32, 32)
    assert not torch.allclose(model(x)[0], model(x)[1])


def test_timm_finds_the_input_size() -> None:
    config = timm.data.resolve_model_data_config(_seeded(0))
    assert config["input_size"] == (3, 32, 32)
    assert config["crop_pct"] == 1.0  # a 32x32 image goes in pixel by pixel
    assert MODELS["resnet20"] is resnet20
