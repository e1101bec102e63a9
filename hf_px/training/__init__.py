"""What recipes are made of: options, experiment, run directory, checkpoints, metrics, sweeps.

Imports tickets and what lies below them; nothing of the report.
"""
