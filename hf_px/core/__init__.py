"""Masks, scores, budgets, batches and files: what everything else is made of.

Imports torch and numpy, and nothing of hf_px.
"""
