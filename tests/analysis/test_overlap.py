"""The overlap of two masks, by hand, as that of sets, and of random masks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.masks import bits

from hf_px.analysis.overlap import overlap, random_jaccard
from hf_px.core.mask import Mask


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
    assert overlap(a, b).all.jaccard == pytest.approx(random_jaccard(a, b), rel=0.03)
