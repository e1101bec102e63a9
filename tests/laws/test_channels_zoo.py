"""shrink on every architecture of recipes/architectures.py: the masked network's outputs, or a reason why not."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch.utils import _pytree as pytree

import hf_px
from hf_px.channels.shrink import shrunk
from hf_px.core.errors import UnsupportedModelError
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable
from recipes.architectures import ZOO

# {architecture: why no channel can go without a change of what the others compute}
UNCUT = {
    "resnetv2_bit": "weights standardised at each call",
    "nf_resnet26": "weights standardised at each call",
    "convnextv2": "each channel is divided by the mean over all, and the others lie in residual streams with a norm",
    "gmlp": "gates are normalised over channels, as is the stream",
}
# these lose little: a norm over channels follows most of their layers
LITTLE = {"test_efficientnet_ln": 0.0005, "test_mambaout": 0.1, "test_efficientnet_evos": 0.2}
QUICK = (
    "test_byobnet", "test_convnext", "test_vit", "test_efficientnet_ln", "resnet18", "vgg11_bn", "densenet121",
    "regnety", "mobilenetv2_035", "swin", "levit", "ghostnet_050", "transformers ResNet", "transformers ViT", *UNCUT,
)  # fmt: skip


def cases() -> list:
    for arch in ZOO:
        marks = () if arch.name in QUICK else pytest.mark.slow
        yield pytest.param(arch, id=arch.name.replace(" ", "-"), marks=marks)


def calibrated(arch) -> torch.nn.Module:
    """With batch norms that have seen images, as trained ones have."""
    model = arch.model()
    with torch.no_grad():
        for x, _ in arch.batches(count=3):
            model(x)
    return model.eval()


def outputs(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return pytree.tree_leaves(model(x))[0]


@pytest.mark.parametrize("arch", cases())
def test_whole_channels_are_pruned_and_removed(arch):
    model, ((x, _),) = calibrated(arch), arch.batches()
    size, sparsity = tuple(x.shape[1:]), LITTLE.get(arch.name, 0.4)
    if arch.name in UNCUT:
        with pytest.raises(UnsupportedModelError, match="no channel that could be removed"):
            hf_px.prune(model, "magnitude", scope="channel", sparsity=sparsity, input_size=size, progress=False)
        return
    mask = hf_px.prune(
        model, "magnitude", scope="channel", of="macs", sparsity=sparsity, input_size=size, progress=False
    )
    smaller, left, removal = shrunk(model, mask, input_size=size)
    assert left.sparsity == 0, "pruned channels are left"
    assert removal.macs[1] <= (1 - sparsity) * removal.macs[0]
    check_same(mask.apply_(copy.deepcopy(model)), smaller, x)


@pytest.mark.parametrize("arch", cases())
def test_single_weights_pruned(arch):
    """What a mask of single weights leaves without use goes; most networks lose nothing, and all compute the same."""
    model, ((x, _),) = calibrated(arch), arch.batches()
    if arch.name in UNCUT:
        pytest.skip(UNCUT[arch.name])
    draw = torch.Generator().manual_seed(3)
    mask = Mask({n: torch.rand(w.shape, generator=draw) < 0.03 for n, w in prunable(model).items()})
    for name in list(mask.bits)[-1:]:
        mask.bits[name][:] = True
    try:
        smaller, left, removal = shrunk(model, mask, input_size=tuple(x.shape[1:]))
    except ValueError as error:
        assert "no path" in str(error)
        return
    assert left.kept <= mask.kept and removal.weights[1] <= removal.weights[0]
    check_same(mask.apply_(copy.deepcopy(model)), smaller, x)


def check_same(masked: torch.nn.Module, smaller: torch.nn.Module, x: torch.Tensor) -> None:
    """On other images than those that shrink compares with; the masked network must see a difference between them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, found = outputs(masked, x), outputs(smaller, x)
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= 1e-4 * float(expected.abs().max())


def test_the_exceptions_are_of_the_zoo():
    names = {arch.name for arch in ZOO}
    assert {*QUICK, *UNCUT, *LITTLE} <= names and len(UNCUT) == 4
