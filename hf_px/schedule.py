"""Density after round t of T, from 1 down to the final density: exponential (the paper's), linear, one-shot."""

from __future__ import annotations

from collections.abc import Callable

Schedule = Callable[[int, int, float], float]


def exponential(t: int, rounds: int, density: float) -> float:
    """d^(t/T): the same fraction of what is left goes in every round."""
    return density ** (t / rounds)


def linear(t: int, rounds: int, density: float) -> float:
    """1 - (1 - d)·t/T: the same number of weights goes in every round."""
    return density if t == rounds else 1.0 - (1.0 - density) * t / rounds


def one_shot(t: int, rounds: int, density: float) -> float:
    """d: all at once."""
    return density


SCHEDULES: dict[str, Schedule] = {"exponential": exponential, "linear": linear, "one-shot": one_shot}
