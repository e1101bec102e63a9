"""The method where nobody names one: what model_cards/RESULTS.md supports; tests/test_results.py holds it to that.

Without torch: `hf-px prune --help` says it.
"""

DEFAULT = "px-path"
