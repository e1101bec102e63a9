"""Text is cut and wrapped to its width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hf_px.figures.svg_text import TEXT_SIZE, cut_end, cut_front, cut_middle, text_width, wrap


@given(st.text(max_size=60), st.floats(20, 400))
def test_text_is_cut_to_its_width(words: str, most: float) -> None:
    assert text_width(cut_front(words, most)) <= max(most, text_width("…"))
    assert text_width(cut_end(words, most)) <= max(most, text_width("…"))
    assert text_width(cut_middle(words, most)) <= max(most, text_width("…"))
    lines = wrap(words, most, TEXT_SIZE, bold=False)
    assert all(text_width(line) <= most for line in lines) and len(lines) <= 3
    if text_width(words) <= most:
        assert cut_front(words, most) == cut_middle(words, most) == cut_end(words, most) == words
