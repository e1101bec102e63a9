"""Reports on tickets and models as an HTML page, Markdown, CSV and JSON; hf-px report writes them.

May import everything but the command line. See README.md here.
"""

from .document import Figure, Report, Section
from .write_files import check_report_directory, write_report

__all__ = ["Figure", "Report", "Section", "check_report_directory", "write_report"]
