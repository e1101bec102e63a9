"""Random training plans, for Hypothesis."""

from hypothesis import strategies as st

from hf_px.training.plan import Plan

plans = st.builds(
    lambda n, part, processes, accumulation, epochs, seed: Plan(
        max(n, processes * accumulation * part), processes * accumulation * part, epochs, seed, processes, accumulation
    ),
    st.integers(1, 120), st.integers(2, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 9),
)  # fmt: skip
