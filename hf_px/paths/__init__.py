"""A network run as the sum of its paths: with its gates held fixed, it is linear in its input.

Imports core only.
"""

from .gate_flow import open_flow
from .live_weights import live_weights, lost_factors
from .random_walk import walk
from .record_replay import LastReplay, Replay, record, replay, ungated
from .steering import beside_paths, in_one_ranking, like_contribution, operations, steering_shares, weights_that_steer
from .views import ABSOLUTE, FLOW, ONES, PATHS, SQUARED, View, edge_shares, edge_weights, power
from .visibility import check_visible

__all__ = [
    "ABSOLUTE", "FLOW", "ONES", "PATHS", "SQUARED",
    "LastReplay", "Replay", "View",
    "beside_paths", "check_visible", "edge_shares", "edge_weights", "in_one_ranking", "like_contribution",
    "live_weights", "lost_factors", "open_flow", "operations", "power", "record", "replay", "steering_shares",
    "ungated", "walk", "weights_that_steer",
]  # fmt: skip
