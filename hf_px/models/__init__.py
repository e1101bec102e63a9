"""From a name, a Hub id or a file to a network with its weights; our own small networks are in `networks/`.

May import core.
"""
