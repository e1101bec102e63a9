"""Pictures with a label map: pairs, their transforms, and label maps drawn over pictures.

Imports core and the rest of `data`.
"""
