"""The report's files: one page that needs nothing, the same as Markdown and numbers; a stranger's words are words."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import HOSTILE, LONG, SHORT, TICKETS, a_report

from hf_px.figures import Table, layers
from hf_px.report import Figure, Report, Section, check, write
from hf_px.report.html import html
from hf_px.report.markdown import markdown
from hf_px.report.write_files import files

VOID = {"meta", "br", "hr", "img", "input", "link"}
HOSTILE_SHORT = tuple(f"{HOSTILE}{i}" for i in range(3))


class Page(HTMLParser):
    """What a page holds, by one who reads tags and text alone; tags must close in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[tuple[tuple[str, ...], str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.words.append((tuple(self.open), data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]

    def text_of(self, tag: str) -> list[str]:
        return [data for path, data in self.words if path[-1] == tag]


@cache
def page(tickets: tuple[str, ...] = TICKETS, names: tuple[str, ...] = SHORT, words: str = "A paragraph.") -> Page:
    return Page(html(a_report(tickets, names, words)))


HOSTILE_REPORT = ((f"{HOSTILE}1", f"{HOSTILE}2"), HOSTILE_SHORT, HOSTILE)
PAGES = [(TICKETS, SHORT), (TICKETS[:1], LONG[:30]), HOSTILE_REPORT]


@pytest.mark.parametrize("args", PAGES, ids=["four", "one", "hostile"])
def test_headings_are_in_order_and_every_part_has_a_link(args: tuple) -> None:
    found = page(*args)
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(b - a <= 1 for a, b in zip(levels, levels[1:]))  # noqa: RUF007
    ids = [attrs["id"] for _, attrs in found.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = [attrs["href"] for attrs in found.all("a")]
    assert links[0] == "#main" and all(link.removeprefix("#") in ids for link in links)
    assert {"facts", "density", "spectrum", "scores", "cost", "settings"} <= {link[1:] for link in links}
    for _, attrs in found.tags:
        assert not {"src", "srcset", "action", "data", "background"} & attrs.keys()
        assert not [name for name in attrs if name.startswith("on")]
        assert attrs.get("aria-labelledby", "facts") in ids
    assert all(attrs["href"].startswith("#") for tag, attrs in found.tags if "href" in attrs)


@pytest.mark.parametrize("args", PAGES, ids=["four", "one", "hostile"])
def test_it_needs_no_script_and_no_network(args: tuple) -> None:
    found = page(*args)
    assert not found.all("script") and not found.all("img") and not found.all("link") and not found.all("iframe")
    (policy,) = [m["content"] for m in found.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'") and "script" not in policy
    styles = "".join(found.text_of("style"))
    assert "url(" not in styles and "@import" not in styles
    assert found.tags[0] == ("html", {"lang": "en"})


@pytest.mark.parametrize("args", PAGES, ids=["four", "one", "hostile"])
def test_every_picture_has_words_and_numbers(args: tuple) -> None:
    found, report = page(*args), a_report(*args)
    pictures = found.all("svg")
    assert len(pictures) == len(list(report.figures())) == 6
    assert all(p["role"] == "img" for p in pictures)
    text = html(report)
    for figure in report.figures():
        part = text[text.index(f'<figure id="{figure.name}"') :].split("</figure>")[0]
        assert part.count("<desc>") == 1 and part.count("<table") == 1 and figure.svg.strip() in part
        assert part.index("</svg>") < part.index("<table")


def cells(text: str) -> list[list[str]]:
    rows: list[list[str]] = []

    class Rows(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list) -> None:
            if tag == "tr":
                rows.append([])
            if tag in ("td", "th"):
                rows[-1].append("")

        def handle_data(self, data: str) -> None:
            if rows and rows[-1]:
                rows[-1][-1] += data

    Rows().feed(text)
    return [[cell.strip() for cell in row] for row in rows]


def test_tables_on_the_page_are_the_tables() -> None:
    report = a_report()
    tables = re.findall(r"<table.*?</table>", html(report), re.S)
    wanted = list(report.tables().values())
    assert len(tables) == len(wanted) + 1  # and the settings
    for text, table in zip(tables, wanted):
        assert cells(text) == [list(table.head), *map(list, table.shown())]
    assert ["seed", "0"] in cells(tables[-1])


def test_scroll_regions_have_a_name_and_a_place_in_the_tab_order() -> None:
    regions = [attrs for _, attrs in page().tags if attrs.get("class") == "scroll"]
    assert len(regions) == len(a_report().tables()) + 1  # and the settings
    assert all(r["tabindex"] == "0" and r["role"] == "region" and r["aria-label"] for r in regions)


def test_the_command_is_there_as_it_was_typed() -> None:
    command = "hf-px report 'a b' \"c\" <d> --output report/"
    report = replace(a_report(), settings={"command": command})
    assert Page(html(report)).text_of("code") == [command]
    assert f"```\n{command}\n```" in markdown(report)


def test_hostile_words_are_words() -> None:
    report = a_report(*HOSTILE_REPORT)
    content = files(report)
    for name, data in content.items():
        text = re.sub(r"```.*?```", "", data.decode(), flags=re.S)  # a fence holds the command
        if not name.endswith((".json", ".csv")):  # these keep what was given, in quotes
            assert "<script" not in text and "<img" not in text and "\x1b" not in text and "\x00" not in text, name
    json.loads(content["report.json"])
    outside = re.sub(r"```.*?```", "", content["report.md"].decode(), flags=re.S)
    assert "](http" not in outside and "http:" not in outside
    assert re.findall(r"\]\(([^)]*)\)", outside) == [f"figures/{f.name}.svg" for f in report.figures()]


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=30))
def test_any_text_gives_a_page(words: str) -> None:
    svg = layers([words], {words: [0.5]}, title=words, x=words)
    figure = Figure("a-figure", words, svg, Table((words,), ((words,),)), words)
    report = Report(
        words, (words,), Table((words,), ((words,),)), (Section("a", words, (words,), (figure,)),), {words: words}
    )
    found = Page(html(report))
    assert len(found.all("h1")) == 1 and len(found.all("svg")) == 1 and not found.all("script")
    assert files(report) == files(report)


# files


def test_equal_reports_give_equal_files() -> None:
    assert files(a_report()) == files(a_report())


def test_all_files_are_there_and_hold_the_numbers() -> None:
    report = a_report()
    content = files(report)
    figures = [figure.name for figure in report.figures()]
    assert set(content) == {
        *("index.html", "report.md", "report.json"),
        *(f"figures/{name}.svg" for name in figures),
        *(f"tables/{name}.csv" for name in [*figures, "facts", "spectrum", "cost"]),
    }
    record = json.loads(content["report.json"])
    assert record["facts"] == report.facts.records() and record["settings"]["nan"] == "nan"
    assert "<svg" not in content["report.json"].decode()
    for section, told in zip(report.sections, record["sections"]):
        assert told["table"] == (section.table.records() if section.table else None)
        assert [f["table"] for f in told["figures"]] == [f.table.records() for f in section.figures]
    for name, table in report.tables().items():
        read = list(csv.reader(io.StringIO(content[f"tables/{name}.csv"].decode())))
        assert read == [list(table.head), *([str(c) if c is not None else "" for c in row] for row in table.rows)]
    for figure in report.figures():
        assert content[f"figures/{figure.name}.svg"].decode() == figure.svg


def test_markdown_folds_long_tables_only() -> None:
    text = markdown(a_report())
    assert text.count("<details>") == text.count("</details>") == 4  # three by layer, one by rank
    assert text.startswith("# What the tickets kept")
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        *("## Facts", "## Density and width", "## Spectrum of the fixed-weight NTK", "## Scores", "## Cost"),
        "## How it was made",
    ]
    assert "| kept weights | 4,876 of 270,896 |" in text


@pytest.mark.parametrize("words", ["# not a heading", "- no list", "1. no list", "> no quote", "=== x", "12) no"])
def test_a_paragraph_stays_one(words: str) -> None:
    text = markdown(a_report(TICKETS[:1], words=words))
    assert not [line for line in text.splitlines() if line.startswith(words[:3])]


def there(directory: Path) -> dict[str, bytes]:
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_what_is_written_is_what_files_gives(tmp_path: Path) -> None:
    report = a_report()
    assert write(report, tmp_path / "a" / "b") == tmp_path / "a" / "b" / "index.html"
    assert there(tmp_path / "a" / "b") == files(report)


def test_an_earlier_report_is_replaced_and_nothing_of_it_stays(tmp_path: Path) -> None:
    write(a_report(), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "figures" / "mine.svg").write_text("mine")
    small = replace(a_report(TICKETS[:1]), sections=a_report(TICKETS[:1]).sections[1:2])
    write(small, tmp_path)
    mine = {"notes.txt": b"mine", "figures/mine.svg": b"mine"}
    assert there(tmp_path) == files(small) | mine


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
        write(a_report(), tmp_path)
    assert written[0] == "report.json" and not (tmp_path / "index.html").exists()
    monkeypatch.setattr(module, "write_atomic", lambda path, data: (written.append(path.name), real(path, data)))
    write(a_report(), tmp_path)  # again, after the disk has room
    assert written[-2:] == ["report.json", "index.html"]
    assert there(tmp_path) == files(a_report())


def test_a_record_that_was_edited_removes_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(a_report(), out)
    (tmp_path / "precious.csv").write_text("mine")
    record = json.loads((out / "report.json").read_text())
    record["files"] = ["../precious.csv", "tables/../../precious.csv", str(tmp_path / "precious.csv"), 3, "index.html"]
    (out / "report.json").write_text(json.dumps(record))
    write(a_report(), out)
    assert (tmp_path / "precious.csv").exists() and there(out) == files(a_report())


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
        write(a_report(), tmp_path)
    assert there(tmp_path) == {name: content.encode()}
    check(tmp_path, beside=[name])  # unless it is known to belong there


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(ValueError, match=r"is a file|is not a directory"):
            write(a_report(), path)
    (tmp_path / ".report.json.17.tmp").write_text("killed")  # what a kill leaves is nobody's
    (tmp_path / "a").unlink()
    check(tmp_path)


@pytest.mark.parametrize(
    ("make", "error", "complaint"),
    [
        (lambda: Figure("A b", "t", "<svg/>", Table((), ())), ValueError, "'A b' cannot name a part"),
        (lambda: Figure("../x", "t", "<svg/>", Table((), ())), ValueError, "cannot name a part"),
        (lambda: Figure("a", "t", "<p>", Table((), ())), ValueError, "figure a: '<p>' is not an SVG"),
        (lambda: Section("a", "t", "words"), TypeError, "a: words are paragraphs"),  # type: ignore[arg-type]
        (lambda: replace(a_report(), sections=a_report().sections[:1] * 2), ValueError, "'density' names two parts"),
        (lambda: replace(a_report(), sections=(Section("facts", "t"),)), ValueError, "'facts' names two parts"),
    ],
)
def test_what_is_no_report_is_named(make: Callable[[], object], error: type, complaint: str) -> None:
    with pytest.raises(error, match=re.escape(complaint)):
        make()
