"""Sparse inference on CPUs: a pruned model's convolutions and linear layers skip their zeros.

May import core, models and tickets. The kernels need llvmlite, the extra hf-px[fast].
"""
