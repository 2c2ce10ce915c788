"""One self-contained HTML page: inline styles, escaped text, no script, no request."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from html import escape
from typing import Any

from torch import Tensor

from whence.attribution import Attribution
from whence.views.parts import maps
from whence.views.terminal import clean

_CELLS = 1024  # a larger map is a picture, without the numbers on hover

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6470; --paper: #ffffff; --line: #d9dee4; --cell: #f6f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaed; --soft: #a2abb6; --paper: #14171a; --line: #333a42; --cell: #1d2125; } }
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 68rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .3rem; }
p { margin: .3rem 0 .8rem; max-width: 46rem; } .soft { color: var(--soft); font-size: .9rem; }
.maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(7.5rem, 1fr)); gap: .9rem; margin: .6rem 0; }
figure { margin: 0; max-width: 12rem; } figure.strip { grid-column: 1 / -1; max-width: none; }
figcaption { font-size: .8rem; color: var(--soft); overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; box-sizing: border-box;
  border: 1px solid var(--line); border-radius: 4px; background: #fff; }
table { border-collapse: collapse; font-size: .9rem; display: block; overflow-x: auto; }
td, th { border-bottom: 1px solid var(--line); padding: .25rem .7rem .25rem 0; text-align: left; }
code { background: var(--cell); padding: .1rem .3rem; border-radius: 3px; }
"""


def page(title: str, sections: Sequence[str], lead: str = "") -> str:
    """A whole page."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>{text(title)}</h1>{lead}{''.join(sections)}</body></html>"
    )


def text(value: Any) -> str:
    """Escaped, without control characters."""
    return escape(clean(str(value)))


def section(a: Attribution, note: str = "", most: int = 12) -> str:
    """One attribution: its maps or bars, and what it measured about itself."""
    shown = [figure(part.values, part.caption) for part in maps(a, most)]
    more = f'<p class="soft">{len(a) - most} more rows are not shown.</p>' if len(a) > most else ""
    return (
        f"<section><h2>{text(a.method)}</h2>{f'<p>{text(note)}</p>' if note else ''}"
        f'<div class="maps">{"".join(shown)}</div>{more}<p class="soft">{text(facts(a))}</p></section>'
    )


def facts(a: Attribution) -> str:
    """What a run says about itself, in a sentence."""
    receipt = a.receipt
    said = [f"{receipt.get('forward_passes', 0)} forward and {receipt.get('backward_passes', 0)} backward passes"]
    if a.gap is not None:
        said.append(f"worst completeness gap {float(a.gap.max()):.2g}")
    if receipt.get("tolerance_reached"):
        said.append(f"estimated error at most {max(receipt['tolerance_reached']):.2g}")
    if False in receipt.get("converged", ()):
        said.append(f"{receipt['converged'].count(False)} rows did not reach the tolerance")
    if receipt.get("unruled"):
        said.append("plain derivative at " + ", ".join(sorted({item["op"] for item in receipt["unruled"]})))
    if receipt.get("unseen"):
        said.append("not seen: " + ", ".join(sorted({item["node"] for item in receipt["unseen"]})))
    return "; ".join(said) + "."


def figure(values: Tensor, caption: str, ink: bool = False) -> str:
    """A map of numbers as coloured cells, with the numbers on hover."""
    grid = values.detach().double().cpu()
    while grid.dim() > 2:  # channels: summed, which keeps the total
        grid = grid.sum(0)
    if grid.dim() < 2:
        grid = grid.reshape(1, -1)
    strip = ' class="strip"' if len(grid) == 1 else ""
    return f"<figure{strip}>{heatmap(grid, caption, ink=ink)}<figcaption>{text(caption)}</figcaption></figure>"


def heatmap(grid: Tensor, label: str = "", ink: bool = False) -> str:
    """An SVG of a 2-D grid: blue below zero, white at zero, red above, one scale for the grid; `ink` draws in grey."""
    rows, columns = grid.shape
    grid = grid.nan_to_num(0.0, 0.0, 0.0)
    largest = float(grid.abs().max()) or 1.0
    strip = "height: 2.2rem; " if rows == 1 else ""
    if rows * columns > _CELLS:
        return (
            f'<img alt="{text(label)}" style="width: 100%; {strip}image-rendering: pixelated" '
            f'src="data:image/png;base64,{_png(grid / largest, ink)}">'
        )
    cells = [
        f'<rect x="{x}" y="{y}" width="1.02" height="1.02" fill="{colour(value / largest, ink)}">'
        f"<title>({y}, {x}): {value:.4g}</title></rect>"
        for y, line in enumerate(grid.tolist())
        for x, value in enumerate(line)
    ]
    return (
        f'<svg role="img" aria-label="{text(label)}" viewBox="0 0 {columns} {rows}" '
        f'preserveAspectRatio="none" style="{strip}max-width: {columns * 2.5:.1f}rem" '
        f'shape-rendering="crispEdges">{"".join(cells)}</svg>'
    )


def _png(shares: Tensor, ink: bool) -> str:
    """A picture of many cells: a PNG written by hand, since nothing else here needs an imaging library."""
    steps = ((shares + 1) * 127.5).round().long().tolist()
    palette = [bytes.fromhex(colour(step / 127.5 - 1, ink)[1:]) for step in range(256)]
    lines = b"".join(b"\0" + bytes(line) for line in steps)
    height, width = shares.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)  # 8 bits, a palette
    parts = (b"IHDR", head), (b"PLTE", b"".join(palette)), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")
    whole = b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in parts)
    return base64.b64encode(whole).decode()


def colour(share: float, ink: bool = False) -> str:
    """A share in [-1, 1] on a blue–white–red scale that colour-blind readers can tell apart."""
    end = (40, 44, 52) if ink else (178, 24, 43) if share > 0 else (33, 102, 172)
    weight = min(1.0, abs(share)) ** 0.8
    return "#" + "".join(f"{round(255 + (c - 255) * weight):02x}" for c in end)
