"""The report in a real browser, on phone and desktop, light and dark: text stays in its box, nothing is requested."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.places import REPO
from support.reports import HOSTILE, LONG, SHORT, TICKETS, a_report

from hf_px.cli import main
from hf_px.report import write_report

sync_api = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.slow

REPORTS = {
    "one": (TICKETS[:1], SHORT),
    "four": (TICKETS, SHORT),
    "long": (TICKETS, LONG),
    "wide": (
        (*(f"{t}-{'W' * 30}" for t in TICKETS), "名前" * 20),
        tuple(f"{'WM' * 40}{i}" for i in range(9)),
    ),
    "hostile": ((f"{HOSTILE}1", f"{HOSTILE}2"), tuple(f"{HOSTILE}{i}" for i in range(3)), HOSTILE),
}
SIZES = {360: 740, 1440: 900}

# texts that leave the viewport, their element, or what clips them; and texts of a figure that leave it or touch
FAULTS = """() => {
  const found = [], shown = t => t.trim().slice(0, 60);
  const whole = document.documentElement.scrollWidth;
  if (whole > innerWidth) found.push(`the page is ${whole} wide`);
  const leaves = (a, b, by) =>
    a.left < b.left - by || a.right > b.right + by || a.top < b.top - by || a.bottom > b.bottom + by;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walk.nextNode());) {
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest('svg, style, .skip, figure > h3')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const region = parent.closest('.scroll'), block = parent.closest('td, th, p, li, pre, summary, h1, h2, footer');
    const box = block.getBoundingClientRect();
    for (const rect of range.getClientRects()) {
      if (leaves(rect, box, 1)) found.push(`text leaves its ${block.tagName}: ${shown(node.data)}`);
      if (!region && (rect.left < 0 || rect.right > innerWidth)) found.push(`text leaves: ${shown(node.data)}`);
    }
    if (region) {
      const last = region.scrollWidth - region.scrollLeft + region.clientLeft + region.getBoundingClientRect().left;
      if (box.right > last + 1) found.push(`cell out of reach: ${shown(node.data)}`);
    }
  }
  for (const svg of document.querySelectorAll('svg')) {
    const frame = svg.getBoundingClientRect(), unit = frame.width / svg.viewBox.baseVal.width;
    if (frame.left < 0 || frame.right > innerWidth + 0.5) found.push('a figure leaves the page');
    const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent.trim());
    const boxes = texts.map(t => t.getBoundingClientRect());
    const name = svg.querySelector('title').textContent;
    boxes.forEach((b, i) => {
      if (leaves(b, frame, 0))
        found.push(`${name}: text leaves the figure: ${shown(texts[i].textContent)}`);
      for (let j = i + 1; j < boxes.length; j++) {
        const c = boxes[j];  // a line's box is higher than its letters
        if (b.left < c.right && c.left < b.right && b.top + 2.5 * unit < c.bottom && c.top + 2.5 * unit < b.bottom)
          found.push(`${name}: texts touch: ${shown(texts[i].textContent)} | ${shown(texts[j].textContent)}`);
      }
    });
    const cells = [...svg.querySelectorAll('.cell')].map(c => c.getBoundingClientRect());
    [...svg.querySelectorAll('.in')].forEach((t, i) => {
      const b = t.getBoundingClientRect(), c = cells[i];
      if (b.left < c.left || b.right > c.right || b.top < c.top - 1 || b.bottom > c.bottom + 1)
        found.push(`${name}: ${t.textContent} leaves its cell`);
    });
    for (const shape of svg.querySelectorAll('path, rect, line')) {
      const b = shape.getBoundingClientRect();
      if (leaves(b, frame, 0.5))
        found.push(`${name}: a ${shape.tagName} leaves the figure: ${shape.outerHTML.slice(0, 120)}`);
    }
  }
  return [...new Set(found)].slice(0, 20);
}"""

# the least contrast of text and of marks, by what a browser computes
CONTRAST = """() => {
  const parse = c => c.match(/[\\d.]+/g).map(Number);
  const linear = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = parse(c).map(linear); return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05; };
  const ratio = (a, b) => Math.max(light(a) / light(b), light(b) / light(a));
  const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (parse(c).length < 4 || parse(c)[3] > 0) return c; } return 'rgb(255, 255, 255)'; };
  let text = 21, mark = 21, size = 99;
  for (const e of document.querySelectorAll('h1, h2, p, a, th, td, summary, code, footer'))
    if (e.textContent.trim()) text = Math.min(text, ratio(getComputedStyle(e).color, ground(e)));
  for (const svg of document.querySelectorAll('svg')) {
    const under = getComputedStyle(svg.querySelector('.ground')).fill, cells = [...svg.querySelectorAll('.cell')];
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    for (const t of svg.querySelectorAll('text')) {
      size = Math.min(size, parseFloat(getComputedStyle(t).fontSize) * scale);
      if (!t.classList.contains('in')) text = Math.min(text, ratio(getComputedStyle(t).fill, under));
    }
    [...svg.querySelectorAll('.in')].forEach((t, i) => {
      const cell = getComputedStyle(cells[i]).fill;
      text = Math.min(text, ratio(getComputedStyle(t).fill, cell === 'none' ? under : cell));
    });
    const least = (which, how) => svg.querySelectorAll(which).forEach(
      m => { mark = Math.min(mark, ratio(getComputedStyle(m)[how], under)); });
    least('.m, .bar', 'fill');
    least('.line, .axis, .box', 'stroke');
  }
  return {text, mark, size, page: getComputedStyle(document.body).backgroundColor};
}"""

FOCUS = """() => {
  const e = document.activeElement, b = e.getBoundingClientRect(), s = getComputedStyle(e);
  const name = e.className === 'skip' ? 'skip' : e.closest('nav') ? 'nav' : e.className || e.tagName.toLowerCase();
  const seen = s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2;
  return [name, e.getAttribute('href') || e.getAttribute('aria-label') || '', seen,
          b.right > 0 && b.left < innerWidth && b.bottom > 0 && b.top < innerHeight];
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium on this machine")
    root = hasattr(os, "getuid") and os.getuid() == 0
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if root else [])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write_report(a_report(*args), tmp_path_factory.mktemp(name)) for name, args in REPORTS.items()}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by hf-px report for the example ticket and a model pruned by two methods."""
    example = REPO / "model_cards" / "examples" / "resnet20-digits-px-path-98"
    words = ["--scorers", "snip", "synflow", "--rounds", "3", "--images", "10", "--draws", "1", "--quiet"]
    out = tmp_path_factory.mktemp("real") / "report"
    assert main(["report", str(example), "resnet20", *words, "--output", str(out)]) == 0
    return out / "index.html"


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    """open(path, width, scheme) -> page; at the end, the console is empty and nothing was requested from a network."""
    messages: list[str] = []
    pages = []

    def open_page(path: Path, wide: int, scheme: str = "light", **more: Any) -> Any:
        page = browser.new_page(viewport={"width": wide, "height": SIZES.get(wide, 900)}, color_scheme=scheme, **more)
        pages.append(page)
        page.on("console", lambda message: messages.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: messages.append(f"error: {error}"))
        page.on("request", lambda r: messages.append(f"request: {r.url}") if not r.url.startswith("file:") else None)
        page.on("requestfailed", lambda r: messages.append(f"failed: {r.url}"))
        page.goto(path.as_uri())
        return page

    yield open_page
    for page in pages:
        page.close()
    assert messages == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("wide", SIZES)
@pytest.mark.parametrize("name", REPORTS)
def test_all_text_is_inside_its_box(
    opened: Any, written: dict[str, Path], tmp_path: Path, name: str, wide: int, scheme: str
) -> None:
    page = opened(written[name], wide, scheme)
    page.screenshot(path=tmp_path / f"{name}-{wide}-{scheme}.png", full_page=True)
    assert page.evaluate(FAULTS) == []
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate(FAULTS) == []
    page.screenshot(path=tmp_path / f"{name}-{wide}-{scheme}-open.png", full_page=True)
    seen = page.evaluate(CONTRAST)
    assert seen["text"] >= 4.5 and seen["mark"] >= 3
    assert seen["size"] >= (9.9 if wide == 360 else 12)  # pixels: the numbers of a heat map of twelve are the smallest
    assert (sum(map(int, seen["page"][4:-1].split(","))) > 380) == (scheme == "light")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("wide", SIZES)
def test_the_page_of_a_real_ticket(opened: Any, real: Path, tmp_path: Path, wide: int, scheme: str) -> None:
    page = opened(real, wide, scheme)
    page.screenshot(path=tmp_path / f"real-{wide}-{scheme}.png", full_page=True)
    assert page.evaluate(FAULTS) == []
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate(FAULTS) == []
    seen = page.evaluate(CONTRAST)
    assert seen["text"] >= 4.5 and seen["mark"] >= 3


@pytest.mark.parametrize("wide", [320, 375, 640, 759, 760, 1024, 1100, 1920])
def test_at_widths_between(opened: Any, written: dict[str, Path], wide: int) -> None:
    page = opened(written["four"], wide)
    assert page.evaluate(FAULTS) == []


@pytest.mark.parametrize("wide", SIZES)
def test_the_keyboard_reaches_everything_and_shows_where_it_is(
    opened: Any, written: dict[str, Path], tmp_path: Path, wide: int
) -> None:
    page = opened(written["four"], wide)
    seen = []
    for _ in range(80):
        page.keyboard.press("Tab")
        name, label, outlined, inside = page.evaluate(FOCUS)
        if name == "body" or (seen and name == "skip"):
            break
        assert outlined and inside, (name, label)
        if name == "skip":
            page.screenshot(path=tmp_path / "skip.png")
        seen.append((name, label))
        if name == "summary":
            page.keyboard.press("Enter")  # opens it: its table comes next
    assert seen[0] == ("skip", "#main")
    assert [label for name, label in seen if name == "nav"] == [
        *("#facts", "#density", "#spectrum", "#scores", "#cost", "#settings")
    ]
    regions = page.evaluate("[...document.querySelectorAll('.scroll')].map(e => e.getAttribute('aria-label'))")
    assert [label for name, label in seen if name == "scroll"] == regions
    assert sum(name == "summary" for name, _ in seen) == 6


def test_the_skip_link_goes_to_the_facts_and_arrows_scroll_a_table(opened: Any, written: dict[str, Path]) -> None:
    page = opened(written["four"], 360)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main"
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUS)[:2] == ["scroll", "Facts"]
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("document.activeElement.scrollLeft > 20", timeout=5000)


def test_names_and_numbers_are_there_for_those_who_do_not_see(opened: Any, written: dict[str, Path]) -> None:
    page = opened(written["one"], 1440)
    tree = page.locator("body").aria_snapshot()
    for line in ("banner", "main", 'navigation "Sections"', 'heading "Facts" [level=2]', 'img "Density by layer"'):
        assert line in tree, line
    assert 'region "Facts"' in tree and 'rowheader "kept weights"' in tree


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("wide", SIZES)
def test_pictures_alone(opened: Any, written: dict[str, Path], tmp_path: Path, wide: int, scheme: str) -> None:
    figures = sorted((written["four"].parent / "figures").iterdir())
    for path in figures:
        page = opened(path, wide, scheme)
        box = page.evaluate("document.documentElement.getBoundingClientRect().toJSON()")
        assert box["left"] >= 0 and box["right"] <= wide
        fill = page.evaluate("getComputedStyle(document.querySelector('.ground')).fill")
        assert (fill == "rgb(255, 255, 255)") == (scheme == "light")
    images = "".join(f'<p><img src="{path.as_uri()}" style="max-width:100%" alt=""></p>' for path in figures)
    (tmp_path / "images.html").write_text(f"<!DOCTYPE html><title>figures</title>{images}")  # as GitHub shows them
    page = opened(tmp_path / "images.html", wide, scheme)
    sizes = page.evaluate("[...document.images].map(i => [i.complete, i.width, i.height])")
    assert all(done and 300 < w <= wide and h > 200 for done, w, h in sizes)
    page.screenshot(path=tmp_path / f"alone-{wide}-{scheme}.png", full_page=True)


def test_on_paper_it_is_light_and_whole(opened: Any, written: dict[str, Path], tmp_path: Path) -> None:
    page = opened(written["four"], 1440, "dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.querySelector('svg .ground')).fill") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(31, 35, 40)"
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    page.pdf(path=tmp_path / "report.pdf")
    page.screenshot(path=tmp_path / "print.png", full_page=True)
