"""shrink: the same outputs, and no unit left that the output does not need. Live units come from a numpy oracle."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
from support.common import state_of
from torch import nn

import hf_px
from hf_px.channels.shrink import shrunk
from hf_px.core.errors import UnsupportedModelError
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable


def random_mask(model: nn.Module, density: float, seed: int = 0, keep: tuple[str, ...] = ()) -> Mask:
    generator = torch.Generator().manual_seed(seed)
    bits = {
        n: torch.rand(w.shape, generator=generator) < (1.0 if n in keep else density)
        for n, w in prunable(model).items()
    }
    return Mask(bits)


def mlp(*widths: int, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def live_units(masks: list[np.ndarray]) -> list[int]:
    """Units of each hidden layer that an input reaches and that reach an output, by boolean products."""
    forward = [np.ones(masks[0].shape[1], bool)]
    for mask in masks:
        forward.append((mask & forward[-1]).any(1))
    backward = [np.ones(masks[-1].shape[0], bool)]
    for mask in reversed(masks):
        backward.append((mask & backward[-1][:, None]).any(0))
    return [int((f & b).sum()) for f, b in zip(forward, reversed(backward))][1:-1]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("bias", [True, False])
def test_an_mlp_keeps_the_live_units_and_nothing_else(seed: int, bias: bool) -> None:
    model = mlp(6, 12, 15, 9, 4, bias=bias)
    mask = random_mask(model, 0.12, seed, keep=("0.weight",))
    mask.bits["6.weight"][0, 0] = mask.bits["4.weight"][0, 0] = mask.bits["2.weight"][0, 0] = True  # a path
    smaller = hf_px.shrink(model, mask, input_size=(6,), progress=False)
    expected = live_units([bits.numpy() for bits in mask.bits.values()])
    assert [smaller[i].out_features for i in (0, 2, 4)] == expected
    x = torch.randn(50, 6)
    masked = mask.apply_(copy.deepcopy(model))
    assert torch.allclose(masked(x), smaller(x), atol=1e-6)


def test_the_model_and_the_random_state_are_as_before() -> None:
    model = mlp(6, 12, 4).train()
    model[0].weight.requires_grad_(False)
    before = state_of(model)
    smaller = hf_px.shrink(model, random_mask(model, 0.3), input_size=(6,), progress=False)
    assert state_of(model) == before
    assert smaller.training and not smaller[0].weight.requires_grad and smaller[2].weight.requires_grad


def test_constants_of_dead_units_move_into_the_biases_that_read_them() -> None:
    """A dead unit sends relu(bias); behind a batch norm relu(β - μγ/σ). A layer without a bias gets one."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 1, bias=False), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3, bias=False),
    )  # fmt: skip
    for tensor in (model[1].weight, model[1].bias, model[1].running_mean, model[1].running_var):
        nn.init.uniform_(tensor, 0.5, 1.5)
    nn.init.constant_(model[0].bias, 3.0)
    model.eval()
    mask = random_mask(model, 1.0)
    mask.bits["0.weight"][:4] = False  # four units are constants, and not zero
    smaller = hf_px.shrink(model, mask, input_size=(3, 8, 8), progress=False)
    assert smaller[0].out_channels == 2 and smaller[1].num_features == 2 and smaller[3].bias is not None
    masked, x = mask.apply_(copy.deepcopy(model)), torch.randn(4, 3, 8, 8)
    constant = model[1](torch.full((1, 6, 1, 1), 3.0))[0, :4, 0, 0].relu().double()
    folded = masked[3].weight[:, :4, 0, 0].double() @ constant
    assert torch.allclose(smaller[3].bias.double(), folded, rtol=1e-5)
    assert torch.allclose(masked(x), smaller(x), atol=1e-5)


@pytest.mark.parametrize(("bias", "left"), [(-1.0, 2), (0.0, 2), (1.0, 3)])
def test_a_border_of_zeros_keeps_a_constant_that_is_not_zero(bias: float, left: int) -> None:
    """relu(1) is 1 inside and 0 in the border: no bias says that. relu(-1) is 0 everywhere, and can go."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1)).eval()
    mask = random_mask(model, 1.0)
    mask.bits["0.weight"][0] = False
    with torch.no_grad():
        model[0].bias[0] = bias
    smaller = hf_px.shrink(model, mask, input_size=(3, 8, 8), progress=False)
    assert smaller[0].out_channels == left
    x = torch.randn(2, 3, 8, 8)
    assert torch.allclose(mask.apply_(copy.deepcopy(model))(x), smaller(x), atol=1e-6)


class Residual(nn.Module):
    """Two branches that are added, and a depthwise layer: what must go together."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a = nn.Conv2d(3, 8, 1, bias=False), nn.Conv2d(8, 8, 1, bias=False)
        self.depth, self.head = nn.Conv2d(8, 8, 3, groups=8, bias=False), nn.Conv2d(8, 4, 1, bias=False)

    def forward(self, x):
        x = self.stem(x)
        return self.head(self.depth(x + self.a(x))).mean((2, 3))


def test_a_residual_channel_goes_only_if_all_who_write_it_are_silent() -> None:
    torch.manual_seed(0)
    model = Residual()
    mask = random_mask(model, 1.0)
    for name in ("stem.weight", "a.weight"):
        mask.bits[name][:3] = False  # three channels that nobody writes
    mask.bits["stem.weight"][3] = False  # one that the branch still writes
    smaller = hf_px.shrink(model, mask, input_size=(3, 8, 8), progress=False)
    assert smaller.a.out_channels == smaller.depth.groups == smaller.depth.in_channels == smaller.head.in_channels == 5
    x = torch.randn(2, 3, 8, 8)
    assert torch.allclose(mask.apply_(copy.deepcopy(model))(x), smaller(x), atol=1e-6)


def test_a_second_shrink_finds_nothing_and_a_mask_of_the_rest_cuts_further() -> None:
    model = mlp(6, 12, 15, 4)
    first, left, removal = shrunk(model, random_mask(model, 0.2, keep=("0.weight",)), input_size=(6,))
    _, _, none = shrunk(first, left, input_size=(6,))
    assert removal.channels[1] < removal.channels[0] and none.channels[0] == none.channels[1] == removal.channels[1]
    further = Mask({n: b.clone() for n, b in left.bits.items()})
    further.bits["0.weight"][0] = False
    second, _, _ = shrunk(first, further, input_size=(6,))
    assert second[0].out_features == first[0].out_features - 1
    x = torch.randn(5, 6)
    assert torch.allclose(further.apply_(copy.deepcopy(first))(x), second(x), atol=1e-6)


def test_it_prints_what_went(capsys: pytest.CaptureFixture[str]) -> None:
    model = mlp(6, 10, 4)
    mask = random_mask(model, 1.0)
    mask.bits["2.weight"][:, :5] = False
    hf_px.shrink(model, mask, input_size=(6,))
    said = capsys.readouterr().out
    assert said == "shrink: channels 14 -> 9 (-35.7%); weights 100 -> 50 (-50.0%); multiply-adds 100 -> 50 (-50.0%)\n"


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.head(self.two(self.one(x).relu()).relu())


class Branching(nn.Module):
    """Which layer runs depends on the values: no run on nan can tell."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        if x.sum().item() != x.sum().item():
            raise RuntimeError("not a number")
        return self.two(self.one(x).relu())


def test_bad_input_is_named_before_work_starts() -> None:
    model = mlp(6, 12, 4)
    mask = random_mask(model, 1.0)
    with pytest.raises(TypeError, match="`mask` is a NoneType; expected a Mask"):
        hf_px.shrink(model, None, input_size=(6,))
    convolution = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3))
    with pytest.raises(ValueError, match="declares no input size; pass `input_size`"):
        hf_px.shrink(convolution, random_mask(convolution, 1.0))
    with pytest.raises(ValueError, match=r"0\.weight"):
        hf_px.shrink(mlp(6, 13, 4), mask, input_size=(6,))
    mask.bits["2.weight"].zero_()
    with pytest.raises(ValueError, match="no path from the input to the output"):
        hf_px.shrink(model, mask, input_size=(6,))
    tied = Tied()
    with pytest.raises(UnsupportedModelError, match=r"one\.weight and two\.weight are one tensor"):
        hf_px.shrink(tied, Mask({n: torch.ones_like(w).bool() for n, w in prunable(tied).items()}), input_size=(6,))
    branching = Branching()
    with pytest.raises(UnsupportedModelError, match=r"Branching: its channels could not be followed \(not a number"):
        hf_px.shrink(branching, random_mask(branching, 1.0), input_size=(6,))
