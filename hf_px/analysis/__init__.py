"""What a mask did to a network."""

from .summary import LayerRow, Summary, summary

__all__ = ["LayerRow", "Summary", "summary"]
