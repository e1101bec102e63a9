"""The HTML page: one self-contained file in which untrusted text stays text."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reports import HOSTILE, LONG, SHORT, TICKETS, a_report

from hf_px.figures import Table, draw_layers
from hf_px.report import Figure, Report, Section
from hf_px.report.markdown import report_markdown
from hf_px.report.page import page_html
from hf_px.report.write_files import report_files

VOID = {"meta", "br", "hr", "img", "input", "link"}

HOSTILE_SHORT = tuple(f"{HOSTILE}{i}" for i in range(3))


class Page(HTMLParser):
    """The tags and texts of a page; tags must close in order."""

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
    return Page(page_html(a_report(tickets, names, words)))


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
    svgs = found.all("svg")
    assert len(svgs) == len(list(report.figures())) == 6
    assert all(p["role"] == "img" for p in svgs)
    text = page_html(report)
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
    tables = re.findall(r"<table.*?</table>", page_html(report), re.S)
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
    assert Page(page_html(report)).text_of("code") == [command]
    assert f"```\n{command}\n```" in report_markdown(report)


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=30))
def test_any_text_gives_a_page(words: str) -> None:
    svg = draw_layers([words], {words: [0.5]}, title=words, x=words, alt=words)
    figure = Figure("a-figure", words, svg, Table((words,), ((words,),)), words)
    report = Report(
        words, (words,), Table((words,), ((words,),)), (Section("a", words, (words,), (figure,)),), {words: words}
    )
    found = Page(page_html(report))
    assert len(found.all("h1")) == 1 and len(found.all("svg")) == 1 and not found.all("script")
    assert report_files(report) == report_files(report)
