"""Quantiles of scores and the threshold, by hand and against prune."""

from __future__ import annotations

import pytest
import torch
from support.masks import bits
from torch import nn

import hf_px
from hf_px.analysis.saliency import saliency
from hf_px.core.mask import Mask


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
        scores = hf_px.score(model, name, batches, mask=masks[2], round_index=3, seed=4)
        found = saliency(scores, masks[2], mask)
        assert found.clean and found.threshold is not None
        assert sum(row.kept for row in found.rows) == mask.kept
        assert sum(row.scored for row in found.rows) == masks[2].kept
