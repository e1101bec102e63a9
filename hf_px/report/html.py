"""The report as one page: no script, no network, two themes, from a phone to a desk, by keyboard and on paper."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..core.text import plain
from ..figures import Table
from .document import COMMAND, FACTS, SETTINGS, Figure, Report, Section

_LONGEST = 5000  # letters of a paragraph
_LONG = 24  # letters: a cell of more may be broken
_NARROW = 4  # columns of a table that half a page holds
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
:root{color-scheme:light dark;--page:#f3f5f7;--ground:#fff;--ink:#1f2328;--dim:#59636e;--rule:#d5dae0;--link:#0a5cad;
--stripe:#f6f8fa;--shade:#5966}
@media screen and (prefers-color-scheme:dark){:root{--page:#0b0e12;--ground:#14181d;--ink:#e6edf3;--dim:#a3adb8;
--rule:#30373f;--link:#6cb6ff;--stripe:#1a1f26;--shade:#9ab6}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);overflow-wrap:anywhere;
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
header,main,footer{max-width:1340px;margin:0 auto;padding:0 8px}
header{padding-top:20px}
h1{font-size:clamp(1.5rem,1.2rem + 1.4vw,2.1rem);line-height:1.2;margin:0 0 .6rem;text-wrap:balance}
h2{font-size:1.35rem;line-height:1.25;margin:0 0 .5rem}
h3{font-size:1rem;line-height:1.35;margin:0}
p{margin:0 0 .75rem;max-width:72ch}
a{color:var(--link)}
a:focus-visible,summary:focus-visible,[tabindex]:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.skip{position:absolute;left:8px;top:-6rem;background:var(--ground);color:var(--link);padding:.6rem 1rem;z-index:3}
.skip:focus{top:8px}
main:focus{outline:none}
nav ul{display:flex;flex-wrap:wrap;gap:.1rem .35rem;list-style:none;margin:.4rem 0 0;padding:0}
nav a{display:block;padding:.45rem .7rem;border:1px solid var(--rule);border-radius:6px;background:var(--ground);
text-decoration:none;margin:.15rem 0}
nav a:hover{text-decoration:underline}
section{margin:1.6rem 0 0;padding:1.4rem 0 0;border-top:1px solid var(--rule);scroll-margin-top:8px}
.figures,.column{display:grid;gap:14px;grid-template-columns:minmax(0,1fr);align-items:start}
figure{background:var(--ground);border:1px solid var(--rule);border-radius:8px;min-width:0;margin:0 -1px;
position:relative}
figure svg{display:block;width:100%;height:auto;border-radius:8px}
figure h3{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
figcaption{padding:0 10px .6rem}
figcaption p{margin:.2rem 0 .5rem;font-size:.94rem}
summary{cursor:pointer;color:var(--link);padding:.45rem 0;font-size:.94rem}
.scroll{overflow:auto;max-height:28rem;border:1px solid var(--rule);border-radius:6px;max-width:100%;
background:linear-gradient(90deg,var(--ground) 40%,transparent) 0 0/36px 100% no-repeat local,
linear-gradient(270deg,var(--ground) 40%,transparent) 100% 0/36px 100% no-repeat local,
linear-gradient(90deg,var(--shade),transparent) 0 0/16px 100% no-repeat,
linear-gradient(270deg,var(--shade),transparent) 100% 0/16px 100% no-repeat,var(--ground)}
.facts .scroll,.free .scroll{max-height:none}
.facts td,.facts thead th,.facts .long{white-space:normal;min-width:6.5rem}
table{border-collapse:separate;border-spacing:0;font-size:.875rem;line-height:1.4;font-variant-numeric:tabular-nums;
min-width:100%}
caption{text-align:left;color:var(--dim);padding:.4rem .6rem}
th,td{padding:.32rem .6rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--rule);white-space:nowrap}
tr:last-child>*{border-bottom:0}
thead th{position:sticky;top:0;background:var(--stripe);font-weight:600;vertical-align:bottom}
tbody th{font-weight:400;background:var(--ground)}
.named tr>:first-child{position:sticky;left:0;z-index:1;border-right:1px solid var(--rule)}
.named thead th:first-child{z-index:2}
th.long,td.long{white-space:normal;min-width:10rem;max-width:24rem}
.named tr>.long:first-child{min-width:min(15rem,45vw)}
.n{text-align:right}
.facts tbody th{font-weight:600}
pre{margin:0;padding:.7rem .8rem;font:.85rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;
white-space:pre-wrap;overflow-wrap:anywhere;background:var(--ground);border:1px solid var(--rule);border-radius:6px}
footer{padding:2rem 8px 2.5rem;color:var(--dim);font-size:.9rem}
.scroll+p,pre+.free,.scroll+.figures,.figures+.scroll,.figures+.free,p+.free{margin-top:14px}
@media(min-width:700px){header,main,footer{padding-left:24px;padding-right:24px}}
@media(min-width:760px){.figures{grid-template-columns:repeat(2,minmax(0,1fr))}}
@media(min-width:1100px){section{display:grid;grid-template-columns:19rem minmax(0,1fr);column-gap:2rem}
.told{position:sticky;top:1.2rem;align-self:start}}
@media print{body{background:#fff}.skip,nav{display:none}.scroll{max-height:none;overflow:visible}
section,.figures{display:block}.column{display:block}figure{margin:0 0 14px;max-width:15cm}
figure,tr,pre{break-inside:avoid}h2{break-after:avoid}table{font-size:8pt}.named tr>:first-child{position:static}}
"""


def html(report: Report) -> str:
    """All of it in one text; equal reports give equal pages."""
    title = _text(report.title)
    links = [(FACTS, "Facts"), *((s.name, s.title) for s in report.sections), (SETTINGS, "How it was made")]
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta name="generator" content="hf-px">',
        f"<title>{title}</title>",
        f"<style>{_STYLE}</style>",
        "</head>",
        "<body>",
        '<a class="skip" href="#main">Skip to the facts</a>',
        "<header>",
        f"<h1>{title}</h1>",
        *(f"<p>{_text(words)}</p>" for words in report.words),
        '<nav aria-label="Sections">',
        "<ul>",
        *(f'<li><a href="#{name}">{_text(words)}</a></li>' for name, words in links),
        "</ul>",
        "</nav>",
        "</header>",
        '<main id="main" tabindex="-1">',
        f'<section id="{FACTS}" class="facts" aria-labelledby="{FACTS}-title">',
        f'<div class="told"><h2 id="{FACTS}-title">Facts</h2></div>',
        _scroll(report.facts, "Facts"),
        "</section>",
        *(line for section in report.sections for line in _section(section)),
        *_settings(report.settings),
        "</main>",
        "<footer>Written by hf-px. This page needs no network; the same is beside it as report.md, report.json, "
        "figures/*.svg and tables/*.csv.</footer>",
        "</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


def _section(section: Section) -> list[str]:
    lines = [
        f'<section id="{section.name}" aria-labelledby="{section.name}-title">',
        '<div class="told">',
        f'<h2 id="{section.name}-title">{_text(section.title)}</h2>',
        *(f"<p>{_text(words)}</p>" for words in section.words),
        "</div>",
        "<div>",
    ]
    table = [f'<div class="free">{_scroll(section.table, section.title)}</div>'] if section.table else []
    columns = [[line for figure in part for line in _figure(figure)] for part in _columns(section.figures)]
    if table and len(columns) == 1 and section.table and len(section.table.head) <= _NARROW:
        columns, table = [*columns, table], []  # where there would be nothing
    if columns:
        lines.append('<div class="figures">')
        lines += [line for column in columns for line in ('<div class="column">', *column, "</div>")]
        lines.append("</div>")
    return [*lines, *table, "</div>", "</section>"]


def _columns(figures: Sequence[Figure]) -> list[Sequence[Figure]]:
    """In one or two columns, read one after the other; cut where the longer of the two is shortest."""
    if len(figures) < 2:
        return [figures] if figures else []
    heights = [_height(figure.svg) for figure in figures]
    cut = min(range(1, len(figures)), key=lambda i: max(sum(heights[:i]), sum(heights[i:])))
    return [figures[:cut], figures[cut:]]


def _height(svg: str) -> float:
    found = re.search(r'viewBox="0 0 [0-9.]+ ([0-9.]+)"', svg[:500])
    return float(found[1]) + 50 if found else 300.0  # 50: what stands under it


def _figure(figure: Figure) -> list[str]:
    rows = len(figure.table.rows)
    return [
        f'<figure id="{figure.name}" aria-labelledby="{figure.name}-title">',
        f'<h3 id="{figure.name}-title">{_text(figure.title)}</h3>',
        figure.svg.rstrip("\n"),
        "<figcaption>",
        *([f"<p>{_text(figure.words)}</p>"] if figure.words else []),
        f"<details><summary>The numbers, in {rows} row{'' if rows == 1 else 's'}</summary>",
        _scroll(figure.table, f"Numbers: {figure.title}"),
        "</details>",
        "</figcaption>",
        "</figure>",
    ]


def _scroll(table: Table, label: str) -> str:
    """A table that scrolls by itself, by finger, wheel and arrow keys."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(label)}">\n{_table(table)}\n</div>'


def _table(table: Table) -> str:
    numeric = table.numeric()
    # the first column says what a row is about, where it is words
    named = bool(table.head) and not numeric[0]
    head = "".join(f'<th scope="col"{_class(words, n)}>{_text(words)}</th>' for words, n in zip(table.head, numeric))
    body = []
    for row in table.shown():
        cells = [
            f'<th scope="row"{_class(words, n)}>{_text(words)}</th>'
            if i == 0 and named
            else f"<td{_class(words, n)}>{_text(words)}</td>"
            for i, (words, n) in enumerate(zip(row, numeric))
        ]
        body.append(f"<tr>{''.join(cells)}</tr>")
    rows = "\n".join(body)
    style = ' class="named"' if named else ""
    return f"<table{style}>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"


def _class(words: str, numeric: bool) -> str:
    names = ["n"] * numeric + ["long"] * (len(words) > _LONG)
    return f' class="{" ".join(names)}"' if names else ""


def _settings(settings: Mapping[str, Any]) -> list[str]:
    lines = [
        f'<section id="{SETTINGS}" aria-labelledby="{SETTINGS}-title">',
        f'<div class="told"><h2 id="{SETTINGS}-title">How it was made</h2></div>',
        "<div>",
    ]
    if settings.get(COMMAND):
        lines += ["<p>The command:</p>", f"<pre><code>{_text(settings[COMMAND])}</code></pre>"]
    rows = tuple((name, shown(value)) for name, value in sorted(settings.items()) if name != COMMAND)
    if rows:
        lines += ['<div class="free">', _scroll(Table(("setting", "value"), rows), "Settings"), "</div>"]
    return [*lines, "</div>", "</section>"]


def shown(value: Any) -> str:
    """A setting as text: words as they are, several with commas between them, all else as JSON has it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {shown(value[key])}" for key in sorted(value, key=str))
    if isinstance(value, (list, tuple)):
        return ", ".join(map(shown, value))
    return value if isinstance(value, str) else json.dumps(as_json(value), ensure_ascii=False)


def as_json(value: Any) -> Any:
    """What JSON can hold, by names in order; what it has no word for is written out."""
    if isinstance(value, Mapping):
        return {str(key): as_json(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    known = value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))
    return value if known else str(value)


def _text(words: object) -> str:
    return escape(plain(words, _LONGEST), quote=True)
