"""Channels: which entries of which tensors belong to one unit, whole channels pruned, and networks cut to size.

May import core.
"""
