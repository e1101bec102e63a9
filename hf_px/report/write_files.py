"""The files of a report, and how they come into a directory: each whole or not at all, the page last."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..core.files import closed_above, left_over, write_atomic
from .document import Report, is_slug
from .html import as_json, html
from .markdown import markdown

PAGE, TEXT, RECORD = "index.html", "report.md", "report.json"
MARK = "hf-px report"


def files(report: Report) -> dict[str, bytes]:
    """{path: content}; equal reports give equal bytes."""
    record = json.dumps(_record(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    found = {RECORD: record}
    found |= {f"figures/{figure.name}.svg": figure.svg for figure in report.figures()}
    found |= {f"tables/{name}.csv": table.csv() for name, table in report.tables().items()}
    found |= {TEXT: markdown(report), PAGE: html(report)}
    # a name may hold half of a letter, which UTF-8 has no bytes for
    return {path: text.encode("utf-8", "backslashreplace") for path, text in found.items()}


def check(directory: str | os.PathLike[str], beside: Collection[str] = ()) -> None:
    """Refuse a directory that cannot be written to, or holds things that are not ours, before any work.

    `beside` are names of what else may lie in it, such as the measurements that the report is made of.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{directory} is a file; name a directory for the report")
    held = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    others = sorted(name for name in held if not left_over(name) and name not in beside)
    if others and _earlier(directory) is None:
        raise ValueError(f"{directory} holds {others[0]}, and no report of hf-px; name another directory")
    if (closed := closed_above(directory)) is not None:
        raise ValueError(f"{directory}: {closed} is not a directory that can be written to")


def write(report: Report, directory: str | os.PathLike[str], beside: Collection[str] = ()) -> Path:
    """Write all files, the page last, and give its path; what only an earlier report had is taken away then."""
    directory = Path(directory)
    content = files(report)
    check(directory, beside)
    before = _earlier(directory)
    names = [name for name in content if name != RECORD]
    # the record makes the directory ours: first where it is new, and where it is not, after what it speaks of
    names.insert(0 if before is None else len(names) - 1, RECORD)
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(directory / name, content[name])
    for name in sorted((before or set()) - content.keys()):
        (directory / name).unlink(missing_ok=True)
    return directory / PAGE


def _earlier(directory: Path) -> set[str] | None:
    """Pictures and tables of the report in there; None if there is none."""
    try:
        record = json.loads((directory / RECORD).read_text(encoding="utf-8"))
        if record["written_by"] != MARK:
            return None
        names = record["files"]
        return {name for name in names if _own(name)}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _own(name: object) -> bool:
    """Is it a path that files() gives? A record may have been edited, and what it names is removed."""
    folder, _, last = str(name).partition("/")
    return any(folder == f and last.endswith(end) and is_slug(last[: -len(end)]) for f, end in _FOLDERS)


_FOLDERS = (("figures", ".svg"), ("tables", ".csv"))


def _record(report: Report) -> dict[str, Any]:
    """Everything but the pictures; tables as records."""
    return {
        "written_by": MARK,
        "title": report.title,
        "words": list(report.words),
        "facts": report.facts.records(),
        "sections": [
            {
                "name": section.name,
                "title": section.title,
                "words": list(section.words),
                "figures": [
                    {"name": f.name, "title": f.title, "words": f.words, "table": f.table.records()}
                    for f in section.figures
                ],
                "table": section.table.records() if section.table else None,
            }
            for section in report.sections
        ],
        "settings": as_json(report.settings),
        "files": sorted(
            [f"figures/{figure.name}.svg" for figure in report.figures()]
            + [f"tables/{name}.csv" for name in report.tables()]
        ),
    }
