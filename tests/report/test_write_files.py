"""The files of a report and the directories they may be written to."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.reports import HOSTILE, TICKETS, a_report

from hf_px.report import check_report_directory, write_report
from hf_px.report.write_files import CACHE_FOLDER, report_files

HOSTILE_SHORT = tuple(f"{HOSTILE}{i}" for i in range(3))

HOSTILE_REPORT = ((f"{HOSTILE}1", f"{HOSTILE}2"), HOSTILE_SHORT, HOSTILE)


def test_hostile_words_are_words() -> None:
    report = a_report(*HOSTILE_REPORT)
    content = report_files(report)
    for name, data in content.items():
        text = re.sub(r"```.*?```", "", data.decode(), flags=re.S)  # a fence holds the command
        if not name.endswith((".json", ".csv")):  # these keep what was given, in quotes
            assert "<script" not in text and "<img" not in text and "\x1b" not in text and "\x00" not in text, name
    json.loads(content["report.json"])
    outside = re.sub(r"```.*?```", "", content["report.md"].decode(), flags=re.S)
    assert "](http" not in outside and "http:" not in outside
    assert re.findall(r"\]\(([^)]*)\)", outside) == [f"figures/{f.name}.svg" for f in report.figures()]


def test_equal_reports_give_equal_files() -> None:
    assert report_files(a_report()) == report_files(a_report())


def test_all_files_are_there_and_hold_the_numbers() -> None:
    report = a_report()
    content = report_files(report)
    figures = [figure.name for figure in report.figures()]
    assert set(content) == {
        *("index.html", "report.md", "report.json"),
        *(f"figures/{name}.svg" for name in figures),
        *(f"tables/{name}.csv" for name in [*figures, "facts", "spectrum", "cost"]),
    }
    record = json.loads(content["report.json"])
    assert record["facts"] == report.facts.records() and record["settings"]["nan"] == "nan"
    assert "<svg" not in content["report.json"].decode()
    for section, written in zip(report.sections, record["sections"]):
        assert written["table"] == (section.table.records() if section.table else None)
        assert [f["table"] for f in written["figures"]] == [f.table.records() for f in section.figures]
    for name, table in report.tables().items():
        read = list(csv.reader(io.StringIO(content[f"tables/{name}.csv"].decode())))
        assert read == [list(table.head), *([str(c) if c is not None else "" for c in row] for row in table.rows)]
    for figure in report.figures():
        assert content[f"figures/{figure.name}.svg"].decode() == figure.svg


def there(directory: Path) -> dict[str, bytes]:
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_what_is_written_is_what_files_gives(tmp_path: Path) -> None:
    report = a_report()
    assert write_report(report, tmp_path / "a" / "b") == tmp_path / "a" / "b" / "index.html"
    assert there(tmp_path / "a" / "b") == report_files(report)


def test_an_earlier_report_is_replaced_and_nothing_of_it_stays(tmp_path: Path) -> None:
    write_report(a_report(), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "figures" / "mine.svg").write_text("mine")
    small = replace(a_report(TICKETS[:1]), sections=a_report(TICKETS[:1]).sections[1:2])
    write_report(small, tmp_path)
    mine = {"notes.txt": b"mine", "figures/mine.svg": b"mine"}
    assert there(tmp_path) == report_files(small) | mine


def test_the_page_comes_last_and_a_new_directory_is_ours_from_the_first_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hf_px.report.write_files as module

    written: list[str] = []
    real = module.write_atomic

    def write_some(path: Path, data: bytes) -> None:
        if len(written) == 3:
            raise OSError("the disk is full")
        written.append(path.name)
        real(path, data)

    monkeypatch.setattr(module, "write_atomic", write_some)
    with pytest.raises(OSError, match="full"):
        write_report(a_report(), tmp_path)
    assert written[0] == "report.json" and not (tmp_path / "index.html").exists()
    monkeypatch.setattr(module, "write_atomic", lambda path, data: (written.append(path.name), real(path, data)))
    write_report(a_report(), tmp_path)  # again, after the disk has room
    assert written[-2:] == ["report.json", "index.html"]
    assert there(tmp_path) == report_files(a_report())


def test_a_record_that_was_edited_removes_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_report(a_report(), out)
    (tmp_path / "precious.csv").write_text("mine")
    record = json.loads((out / "report.json").read_text())
    record["files"] = ["../precious.csv", "tables/../../precious.csv", str(tmp_path / "precious.csv"), 3, "index.html"]
    (out / "report.json").write_text(json.dumps(record))
    write_report(a_report(), out)
    assert (tmp_path / "precious.csv").exists() and there(out) == report_files(a_report())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("thesis.tex", "mine"),
        ("index.html", "<h1>my site</h1>"),
        ("report.json", "{}"),
        ("report.json", "[1"),
        ("report.json", "3"),
    ],
)
def test_a_directory_of_others_is_refused_before_anything_is_written(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=rf"holds {name}, and no report of hf-px; name another directory"):
        write_report(a_report(), tmp_path)
    assert there(tmp_path) == {name: content.encode()}


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(ValueError, match=r"is a file|is not a writable directory"):
            write_report(a_report(), path)
    (tmp_path / ".report.json.17.tmp").write_text("killed")  # what a kill leaves is nobody's
    (tmp_path / CACHE_FOLDER).mkdir()
    (tmp_path / "a").unlink()
    check_report_directory(tmp_path)
