"""Width, overlap and scores of masks, counted by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import hf_px
from hf_px.analysis import by_chance, live_bits, overlap, saliency, width
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable


def bits(*rows: str) -> torch.Tensor:
    return torch.tensor([[c == "1" for c in row] for row in rows])


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


# width


def test_width_by_hand():
    model, mask = chain()
    live, _ = live_bits(model, mask, input_size=(4,))
    found = width(model, mask, live)
    assert [(row.units, row.kept, row.live) for row in found.rows] == [(3, 2, 1), (3, 2, 1), (2, 2, 1)]
    assert (found.units, found.kept, found.live) == (8, 6, 3)
    assert [row.live for row in width(model, mask).rows] == [None] * 3 and width(model, mask).live is None
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
    assert [(row.units, row.kept) for row in rows] == [(4, 3), (2, 2)]


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
        assert (row.units, row.kept) == (6, 5)
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


# overlap


def test_overlap_by_hand():
    a = Mask({"x": bits("1100"), "y": bits("00")})
    b = Mask({"x": bits("0110"), "y": bits("00")})
    found = overlap(a, b)
    assert [(r.first, r.second, r.shared, r.jaccard) for r in found.rows] == [(2, 2, 1, 1 / 3), (0, 0, 0, 1.0)]
    assert found.all.jaccard == 1 / 3
    with pytest.raises(ValueError, match="y is in one only"):
        overlap(a, Mask({"x": a.bits["x"]}))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_overlap_is_that_of_sets(pairs):
    a, b = ({i for i, pair in enumerate(pairs) if pair[side]} for side in (0, 1))
    found = overlap(*(Mask({"w": torch.tensor([pair[side] for pair in pairs])}) for side in (0, 1))).all
    assert found.jaccard == (len(a & b) / len(a | b) if a | b else 1.0)


def test_masks_drawn_at_random_overlap_by_chance():
    draw = torch.Generator().manual_seed(0)
    a, b = (Mask({"w": torch.rand(200_000, generator=draw) < density}) for density in (0.1, 0.3))
    assert overlap(a, b).all.jaccard == pytest.approx(by_chance(a, b), rel=0.03)


# scores


def test_scores_by_hand():
    scores = {"x": torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 9.0]), "y": torch.tensor([0.0, 7.0])}
    before = Mask({"x": bits("111110")[0], "y": bits("11")[0]})  # 9 took no part
    after = Mask({"x": bits("000110")[0], "y": bits("01")[0]})
    found = saliency(scores, before, after)
    x, y = found.rows
    assert x.quantiles == (1.0, 2.0, 3.0, 4.0, 5.0) and (x.scored, x.kept, x.zero) == (5, 2, 0)
    assert (y.scored, y.kept, y.zero) == (2, 1, 1)
    assert found.threshold == 4.0 and found.clean  # 3 went, 4 stays
    by_layer = saliency(scores, before, Mask({"x": bits("000010")[0], "y": bits("10")[0]}))
    assert by_layer.threshold == 0.0 and not by_layer.clean  # 7 went, 0 stays: no single threshold did this
    assert saliency(scores, before, before).threshold is None  # nothing went
    for wrong, masks in (
        ({"x": scores["x"]}, (before, after)),
        ({**scores, "y": scores["y"] / 0}, (before, after)),
        (scores, (after, before)),
    ):
        with pytest.raises(ValueError, match=r"^[xy]: "):
            saliency(wrong, *masks)


def test_the_scores_of_the_last_round_are_cut_where_the_mask_is():
    """What `score` says of a masked network is what that round of `prune` saw, for a method that draws too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    batches = [(torch.randn(20, 3, 8, 8), torch.randint(10, (20,)))]
    for name in ("px", "snip", "ntk-sap", "random"):
        masks: dict[int, Mask] = {}
        mask = hf_px.prune(
            model, name, sparsity=0.8, batches=batches, rounds=3, seed=4, progress=False, on_round=masks.__setitem__
        )
        assert masks[3] == mask
        scores = hf_px.score(model, name, batches, mask=masks[2], round=3, seed=4)
        found = saliency(scores, masks[2], mask)
        assert found.clean and found.threshold is not None
        assert sum(row.kept for row in found.rows) == mask.kept
        assert sum(row.scored for row in found.rows) == masks[2].kept
