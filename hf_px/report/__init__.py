"""A report: what a ticket is, as one page, as Markdown, and as numbers."""

from .document import Figure, Report, Section
from .write_files import check, write

__all__ = ["Figure", "Report", "Section", "check", "write"]
