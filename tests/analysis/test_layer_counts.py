"""Width counted by hand, as the paper counts units and on paths; bottlenecks."""

from __future__ import annotations

import pytest
import torch
from support.masks import bits
from torch import nn

import hf_px
from hf_px.analysis.layer_counts import count_layers, live_bits
from hf_px.analysis.summary import Summary
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable


def width(model: nn.Module, mask: Mask, live: dict[str, torch.Tensor] | None = None) -> Summary:
    return Summary(count_layers(model, mask, live))


def chain() -> tuple[nn.Module, Mask]:
    """4 → 3 → 3 → 2: unit 1 of the first layer is empty; unit 2 of it is read by nobody; unit 2 of the second has a
    weight, but from unit 1, which is empty.
    """
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    mask = Mask(
        {
            "0.weight": bits("1100", "0000", "0011"),
            "2.weight": bits("100", "000", "010"),
            "4.weight": bits("100", "001"),
        }
    )
    return model, mask


def test_width_by_hand():
    model, mask = chain()
    live, _ = live_bits(model, mask, input_size=(4,))
    found = width(model, mask, live)
    assert [(row.units, row.kept_units, row.live_units) for row in found.rows] == [(3, 2, 1), (3, 2, 1), (2, 2, 1)]
    assert (found.units, found.kept_units, found.live_units) == (8, 6, 3)
    assert [row.live_units for row in width(model, mask).rows] == [None] * 3 and width(model, mask).live_units is None
    table = hf_px.summary(model, mask, input_size=(4,))
    assert [row.live_units for row in table.rows] == [1, 1, 1]


def test_a_kernel_with_all_its_weights_gone_is_one_unit_less():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    ones = Mask.ones(prunable(model)).bits
    first = ones["0.weight"].clone()
    first[0, :, :, :] = False
    first[1, 1:, :, :] = False  # an input channel is left: a unit still
    first[2, 0, 0, 0] = False
    rows = width(model, Mask({**ones, "0.weight": first})).rows
    assert [(row.units, row.kept_units) for row in rows] == [(4, 3), (2, 2)]


@pytest.mark.parametrize("groups", [1, 2])
def test_units_of_a_transposed_convolution_are_its_outputs(groups):
    model = nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=groups))
    for unit in range(6):  # what a unit is, by what it does: without its weights its output is the bias
        mask = Mask.ones(prunable(model)).bits["0.weight"].clone()
        per = 6 // groups
        group, place = divmod(unit, per)
        mask[group * (4 // groups) : (group + 1) * (4 // groups), place] = False
        pruned = nn.utils.parameters_to_vector(model.parameters()).clone()
        (row,) = width(model, Mask({"0.weight": mask})).rows
        assert (row.units, row.kept_units) == (6, 5)
        with torch.no_grad():
            model[0].weight.mul_(mask)
            out = model(torch.randn(1, 4, 5, 5))[0]
        flat = [k for k in range(6) if torch.allclose(out[k], model[0].bias[k])]
        assert flat == [unit]
        nn.utils.vector_to_parameters(pruned, model.parameters())


def test_a_bottleneck_has_less_than_half_of_the_median_layers_share():
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5)))
    kept = [8, 6, 3, 2, 8]  # shares 1, ¾, ⅜, ¼, 1: the median is ¾
    mask = Mask({f"{i}.weight": (torch.arange(8) < n)[:, None].expand(8, 8) for i, n in enumerate(kept)})
    assert width(model, mask).bottlenecks == ["3.weight"]
    gone = Mask({**mask.bits, **{f"{i}.weight": torch.zeros(8, 8, dtype=torch.bool) for i in (1, 2, 4)}})
    assert width(model, gone).bottlenecks == ["1.weight", "2.weight", "4.weight"]  # the median is 0
