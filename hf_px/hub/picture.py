"""Density by layer as an SVG picture: one bar a layer, from input to output; equal masks give equal pictures."""

from __future__ import annotations

from html import escape

from ..mask import Mask

_ROW, _LEFT, _BAR, _RIGHT, _TOP = 16, 300, 380, 80, 40
_STYLE = """
text { font: 11px system-ui, sans-serif; fill: #24292f }
.title { font-size: 13px; font-weight: 600 }
.bar { fill: #0969da }
.whole { fill: #d0d7de }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .bar { fill: #58a6ff }
  .whole { fill: #30363d }
}
"""


def densities(mask: Mask) -> str:
    """Kept / total of each layer, on a linear scale from none to all."""
    width, height = _LEFT + _BAR + _RIGHT, _TOP + _ROW * len(mask.bits) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img">',
        f"<title>Density by layer: {mask.kept:,} of {mask.total:,} weights kept</title>",
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="{_LEFT}" y="20">density by layer, {1 - mask.sparsity:.2%} over all</text>',
    ]
    for i, (name, bits) in enumerate(mask.bits.items()):
        kept, total = int(bits.sum()), bits.numel()
        density = kept / total if total else 0.0
        y = _TOP + _ROW * i
        short = name if len(name) <= 46 else f"…{name[-45:]}"
        lines += [
            f'<text x="{_LEFT - 8}" y="{y + 11}" text-anchor="end">{escape(short)}</text>',
            f'<rect class="whole" x="{_LEFT}" y="{y + 2}" width="{_BAR}" height="{_ROW - 5}"/>',
            f'<rect class="bar" x="{_LEFT}" y="{y + 2}" width="{_BAR * density:.2f}" height="{_ROW - 5}">'
            f"<title>{escape(name)}: {kept:,} of {total:,}</title></rect>",
            f'<text x="{_LEFT + _BAR + 8}" y="{y + 11}">{density:.2%}</text>',
        ]
    return "\n".join([*lines, "</svg>\n"])
