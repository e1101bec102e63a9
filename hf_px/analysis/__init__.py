"""Measurements of a mask or a pruned network: NTK spectrum, width, cost, latency, scores, overlap, summary.

Imports core, paths and scorers; nothing is imported here, because ntk.py needs scipy and tickets need only summary.py.
"""
