"""Pictures as SVG, and the tables under them; equal numbers give equal bytes."""

from .box_chart import boxes
from .heat_map import heatmap
from .layer_chart import layers
from .line_chart import lines
from .table import Table

__all__ = ["Table", "boxes", "heatmap", "layers", "lines"]
