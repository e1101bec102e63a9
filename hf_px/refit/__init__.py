"""The kept weights refitted to a mask: least squares on every layer's inputs, then normalisation statistics.

Imports core, prune_config and pruning. Not called repair, which would hide the function hf_px.repair.
"""
