"""Images with label maps: data sets, transforms, and label maps drawn over images.

May import core and the rest of `data`.
"""
