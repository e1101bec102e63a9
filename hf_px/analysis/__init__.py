"""What a mask did to a network."""

from .cost import Cost, CostRow, Latency, cost, latency, machine, verdict
from .live import live_bits
from .summary import LayerRow, Summary, summary

__all__ = [
    "Cost",
    "CostRow",
    "Latency",
    "LayerRow",
    "Summary",
    "cost",
    "latency",
    "live_bits",
    "machine",
    "summary",
    "verdict",
]
