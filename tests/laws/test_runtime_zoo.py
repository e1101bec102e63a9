"""The sparse runtime on every architecture of recipes/architectures.py: equal to torch, or a documented refusal."""

from __future__ import annotations

import pytest
import torch
from support.sparse import dense, difference, programs_of, prune_, run, sparse
from torch.utils import _pytree as pytree

from hf_px.core.errors import UnsupportedModelError
from hf_px.core.prunable import prunable
from hf_px.runtime.graph import Layer
from recipes.architectures import ZOO

DENSITY = 0.3
REFUSED: dict[str, str] = {}  # {architecture: part of the error}
# weights that are standardised at each call are no zeros when they are used: these run as they are
STANDARDISED = {"test_nfnet", "nf_resnet26", "resnetv2_bit"}
# one of each kind; the others run with `make slow`
QUICK = (
    "test_byobnet", "test_convnext", "test_efficientnet", "test_vit", "resnet18", "resnet50", "vgg11_bn", "densenet121",
    "regnety", "mobilenetv2_035", "swin", "mixer", "transformers ResNet", "transformers ViT",
)  # fmt: skip


def cases():
    for arch in ZOO:
        marks = () if arch.name in QUICK else pytest.mark.slow
        yield pytest.param(arch, id=arch.name.replace(" ", "-"), marks=marks)


@pytest.mark.parametrize("arch", cases())
def test_a_pruned_network_gives_what_torch_gives(arch):
    model, ((x, _),) = prune_(arch.model().eval(), DENSITY), arch.batches(samples=2)
    with torch.no_grad():
        expected = pytree.tree_leaves(model(x))[0]
    try:
        programs = programs_of(model, tuple(x.shape[1:]), sparse(), dense)
    except UnsupportedModelError as error:
        assert arch.name in REFUSED and REFUSED[arch.name] in str(error)
        return
    assert arch.name not in REFUSED, "works, although REFUSED says that it does not"
    for program in programs:
        assert difference(run(program, x), expected) < 1e-4
    graph = programs[0].graph
    known = {graph.tensors[op.weight] for op in graph.ops if isinstance(op, Layer)}
    missing = prunable(model).keys() - known
    assert len(missing) <= 0.2 * len(known) or arch.name in STANDARDISED, f"not run by a layer: {sorted(missing)}"


def test_quick_ones_are_of_the_zoo():
    assert set(QUICK) <= {arch.name for arch in ZOO} and len(QUICK) >= 12
