"""Ticks are few, in order, round, and say what they are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.svg import label_value

from hf_px.figures.scale import ChartScale, scale_around


@settings(deadline=None)
@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=5), st.booleans(), st.integers(3, 8))
def test_ticks_are_few_in_order_and_inside_and_say_what_they_are(values: list[float], log: bool, most: int) -> None:
    axis = scale_around(values, log=log)
    ticks = axis.ticks(most)
    assert len(ticks) <= most
    assert [v for v, _ in ticks] == sorted(v for v, _ in ticks)
    room = (axis.high - axis.low) * 1e-6
    assert all(axis.low - room <= v <= axis.high + room for v, _ in ticks)
    assert all(label_value(label) == pytest.approx(v, rel=1e-9, abs=1e-300) for v, label in ticks)
    assert len({label for _, label in ticks}) == len(ticks)


def test_ticks_are_round_numbers() -> None:
    assert [t for _, t in ChartScale(0, 1).ticks(6)] == ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert [t for _, t in ChartScale(89.7, 93.4).ticks(6)] == ["90", "91", "92", "93"]
    assert [t for _, t in ChartScale(0, 2.5e6).ticks(6)] == ["0", "5e5", "1e6", "1.5e6", "2e6", "2.5e6"]
    assert [t for _, t in ChartScale(0.9, 1200, log=True).ticks(6)] == ["1", "10", "100", "1,000"]
    assert [t for _, t in ChartScale(1e-7, 1e4, log=True).ticks(6)] == ["10⁻⁶", "10⁻⁴", "10⁻²", "10⁰", "10²", "10⁴"]
