"""A report: what a ticket is, as one page, as Markdown, and as numbers."""

from .files import check, write
from .pages import Figure, Report, Section

__all__ = ["Figure", "Report", "Section", "check", "write"]
