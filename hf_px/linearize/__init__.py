"""Run a model as its paths: with its gates held fixed, a network is linear in its input."""

from .audit import check_visible
from .reach import live_weights
from .tape import Entry, Flow, Replay, record, replay, ungated, with_own_scales, without_gates
from .views import ABSOLUTE, ONES, PATHS, SQUARED, View, edge_weights, power, shares
from .walk import walk

__all__ = [
    "ABSOLUTE", "ONES", "PATHS", "SQUARED",
    "Entry", "Flow", "Replay", "View",
    "check_visible", "edge_weights", "live_weights", "power", "record", "replay", "shares", "ungated", "walk",
    "with_own_scales", "without_gates",
]  # fmt: skip
