"""A network run as the sum of its paths: with its gates held fixed, it is linear in its input.

Imports core only.
"""

from .gate_flow import open_flow
from .live_weights import live_weights, lost_factors
from .random_walk import walk
from .record_replay import Entry, Flow, LastReplay, Replay, record, replay, ungated
from .steering import steering_shares, times_power, weights_that_steer, with_steering
from .views import ABSOLUTE, FLOW, ONES, PATHS, SQUARED, View, edge_shares, edge_weights, power
from .visibility import check_visible

__all__ = [
    "ABSOLUTE", "FLOW", "ONES", "PATHS", "SQUARED",
    "Entry", "Flow", "LastReplay", "Replay", "View",
    "check_visible", "edge_shares", "edge_weights", "live_weights", "lost_factors", "open_flow", "power", "record",
    "replay", "steering_shares", "times_power", "ungated", "walk", "weights_that_steer", "with_steering",
]  # fmt: skip
