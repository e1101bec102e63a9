"""A name, a Hub id or a file -> a network with its weights.

Imports what lies below: core, paths, pruning, analysis. Our own small networks are in `networks/`.
"""
