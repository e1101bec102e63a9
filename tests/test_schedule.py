"""Schedules: from 1 down to the density, never up, and there at the last round."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_px.core.allocate import SCHEDULES, exponential, linear, one_shot

densities = st.floats(1e-4, 1.0)
rounds = st.integers(1, 200)


def test_the_three():
    assert dict(SCHEDULES) == {"exponential": exponential, "linear": linear, "one-shot": one_shot}


@given(density=densities, total=rounds, name=st.sampled_from(sorted(SCHEDULES)))
def test_falls_to_the_density_and_ends_there_exactly(density, total, name):
    law = SCHEDULES[name]
    steps = [law(t, total, density) for t in range(1, total + 1)]
    assert steps[-1] == density  # exactly: the count of survivors is rounded from it
    assert all(a >= b for a, b in pairwise([1.0, *steps]))


@given(density=densities, total=rounds)
def test_exponential_removes_the_same_part_every_round(density, total):
    steps = [1.0, *(exponential(t, total, density) for t in range(1, total + 1))]
    for a, b in pairwise(steps):
        assert b / a == pytest.approx(math.exp(math.log(density) / total))


@given(density=densities, total=rounds)
def test_linear_removes_the_same_number_every_round(density, total):
    steps = [1.0, *(linear(t, total, density) for t in range(1, total + 1))]
    for a, b in pairwise(steps):
        assert a - b == pytest.approx((1 - density) / total, abs=1e-12)


def test_one_shot_is_there_at_once():
    assert [one_shot(t, 3, 0.1) for t in (1, 2, 3)] == [0.1, 0.1, 0.1]


def test_the_papers_first_and_last_round():
    assert exponential(1, 100, 0.018) == pytest.approx(0.9606224)  # 0.018^(1/100)
    assert exponential(100, 100, 0.018) == 0.018
