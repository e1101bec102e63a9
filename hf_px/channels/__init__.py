"""Channels: which entries of which tensors belong to one unit, whole channels pruned, and networks cut to size.

May import core.
"""

from .shrink import shrink
from .widths import Widths, widths_of

__all__ = ["Widths", "shrink", "widths_of"]
