"""The files of a report: index.html, report.md, report.json, figures/*.svg and tables/*.csv."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..core.files import is_temporary, unwritable_parent, write_atomic
from .document import Report, is_slug, json_value
from .markdown import report_markdown
from .page import page_html

_PAGE, _MARKDOWN, _RECORD = "index.html", "report.md", "report.json"
_WRITTEN_BY = "hf-px report"
CACHE_FOLDER = ".parts"  # for ReportCache, in the directory of the report; may be deleted at any time


def report_files(report: Report) -> dict[str, bytes]:
    """{path: content}; equal reports give equal bytes."""
    texts = {f"figures/{figure.name}.svg": figure.svg for figure in report.figures()}
    texts |= {f"tables/{name}.csv": table.csv() for name, table in report.tables().items()}
    record = json.dumps(_record(report, sorted(texts)), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    texts |= {_RECORD: record, _MARKDOWN: report_markdown(report), _PAGE: page_html(report)}
    # a name may hold half of a surrogate pair, which UTF-8 cannot encode
    return {path: text.encode("utf-8", "backslashreplace") for path, text in texts.items()}


def check_report_directory(directory: str | os.PathLike[str]) -> None:
    """Refuse a directory that cannot be written to or holds files of others, before any work is done."""
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{directory} is a file; name a directory for the report")
    present = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    others = sorted(name for name in present if not is_temporary(name) and name != CACHE_FOLDER)
    if others and _earlier_files(directory) is None:
        raise ValueError(f"{directory} holds {others[0]}, and no report of hf-px; name another directory")
    if (closed := unwritable_parent(directory)) is not None:
        raise ValueError(f"{directory}: {closed} is not a writable directory")


def write_report(report: Report, directory: str | os.PathLike[str]) -> Path:
    """Write all files, the page last, then remove figures and tables that only an earlier report had.

    Returns the path of the page.
    """
    directory = Path(directory)
    content = report_files(report)
    check_report_directory(directory)
    earlier = _earlier_files(directory)
    names = [name for name in content if name != _RECORD]
    # report.json marks the directory as a report: in a new directory it comes first, so that an interrupted run may
    # be repeated. Over an earlier report it comes after the files that it lists.
    names.insert(0 if earlier is None else len(names) - 1, _RECORD)
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(directory / name, content[name])
    for name in sorted((earlier or set()) - content.keys()):
        (directory / name).unlink(missing_ok=True)
    return directory / _PAGE


def _earlier_files(directory: Path) -> set[str] | None:
    """Figures and tables of the report in the directory; None if there is no report."""
    try:
        record = json.loads((directory / _RECORD).read_text(encoding="utf-8"))
        if record["written_by"] != _WRITTEN_BY:
            return None
        return {name for name in record["files"] if _is_report_file(name)}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_report_file(name: object) -> bool:
    """True for figures/<slug>.svg and tables/<slug>.csv. An edited report.json must not make us delete other files."""
    folder, _, last = str(name).partition("/")
    suffix = {"figures": ".svg", "tables": ".csv"}.get(folder)
    return suffix is not None and last.endswith(suffix) and is_slug(last.removesuffix(suffix))


def _record(report: Report, files: list[str]) -> dict[str, Any]:
    """Everything but the SVGs; tables as lists of records."""
    return {
        "written_by": _WRITTEN_BY,
        "title": report.title,
        "words": list(report.paragraphs),
        "facts": report.facts.records(),
        "sections": [
            {
                "name": section.name,
                "title": section.title,
                "words": list(section.paragraphs),
                "figures": [
                    {"name": f.name, "title": f.title, "words": f.caption, "table": f.table.records()}
                    for f in section.figures
                ],
                "table": section.table.records() if section.table else None,
            }
            for section in report.sections
        ],
        "settings": json_value(report.settings),
        "files": files,
    }
