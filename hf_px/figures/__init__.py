"""Charts as self-contained SVG, and the tables of their numbers; equal numbers give equal bytes.

Imports core only, and no torch: cards, sweeps and reports all draw with it.
"""

from .heat_map import draw_heatmap
from .layer_charts import draw_boxes, draw_layers
from .line_chart import Panel, draw_panels
from .table import Table

__all__ = ["Panel", "Table", "draw_boxes", "draw_heatmap", "draw_layers", "draw_panels"]
