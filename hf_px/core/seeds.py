"""mix_seed(s, n₁, n₂, …): one seed from several numbers, s ← (s · 1,000,003 + n) mod (2⁶³ - 1) for each n."""

from __future__ import annotations


def mix_seed(seed: int, *numbers: int) -> int:
    """Neighbouring numbers give seeds far apart; the same numbers give the same seed on every machine."""
    for number in numbers:
        seed = (seed * 1_000_003 + number) % (2**63 - 1)
    return seed
