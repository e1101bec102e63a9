"""What a mask did to a network."""

from .cost import NO_FASTER, Cost, CostRow, Latency, cost, faster, latency, machine, verdict
from .live import live_bits
from .overlap import Overlap, OverlapRow, by_chance, overlap
from .saliency import Saliency, SaliencyRow, saliency
from .summary import LayerRow, Summary, summary
from .width import Width, WidthRow, width

# ntk.py is not here: scipy's solvers take a second to import, and a ticket loads without
__all__ = [
    "NO_FASTER",
    "Cost",
    "CostRow",
    "Latency",
    "LayerRow",
    "Overlap",
    "OverlapRow",
    "Saliency",
    "SaliencyRow",
    "Summary",
    "Width",
    "WidthRow",
    "by_chance",
    "cost",
    "faster",
    "latency",
    "live_bits",
    "machine",
    "overlap",
    "saliency",
    "summary",
    "verdict",
    "width",
]
