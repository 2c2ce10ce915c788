"""One self-contained HTML page: inline styles, escaped text, no script, no request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from whence.methods import methods
from whence.results.attribution import Attribution
from whence.views import images
from whence.views.colours import wash
from whence.views.maps import Map, counted, maps, notices, sizes_of, spelled, start_of
from whence.views.rows_html import COLUMN, figure, heatmap, matrix, row, text
from whence.views.terminal import cuts

if TYPE_CHECKING:
    from whence.results.comparison import Comparison

__all__ = ["compared", "facts", "figure", "heatmap", "page", "section", "text"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6470; --paper: #ffffff; --line: #d9dee4; --cell: #f6f7f9;
  --warn-ink: #664700; --warn-wash: #fdf5dc; --warn-line: #d9a514; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaed; --soft: #a2abb6; --paper: #14171a; --line: #333a42; --cell: #1d2125;
    --warn-ink: #f2cf7a; --warn-wash: #2b2412; --warn-line: #a27b18; } }
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 68rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.25rem; margin: 2.4rem 0 .3rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .2rem; overflow-wrap: anywhere; }
h4 { font-size: .85rem; margin: .6rem 0 .1rem; }
p { margin: .3rem 0 .8rem; max-width: 46rem; } .soft { color: var(--soft); font-size: .9rem; }
figure { margin: 0; max-width: 14rem; }
figcaption { overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--soft); font-size: .9rem; }
table { border-collapse: collapse; font-size: .9rem; }
.plain td, .plain th { border-bottom: 1px solid var(--line); padding: .25rem .7rem .25rem 0; text-align: left; }
.wide tr > :first-child { position: sticky; left: 0; background: var(--paper); }
code { background: var(--cell); padding: .1rem .3rem; border-radius: 3px; overflow-wrap: anywhere; }
.method { border-top: 1px solid var(--line); padding-top: .5rem; margin-top: .9rem; }
@media print { body { max-width: none; padding: 0; } section, figure, .method { break-inside: avoid; } }
"""

LEGEND = "".join(
    f'<span style="background:{wash(part / 4)};color:var(--ink,inherit);padding:.1rem .55rem">{name}</span>'
    for part, name in [(-4, "against"), (-2, ""), (0, "nothing"), (2, ""), (4, "for")]
)


def page(title: str, sections: Sequence[str], lead: str = "") -> str:
    """A whole page."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{_STYLE}</style></head><body><h1>{text(title)}</h1>{lead}{''.join(sections)}</body></html>"
    )


def section(a: Attribution, note: str = "", most: int = 12) -> str:
    """One attribution: its rows, and what it measured about itself."""
    shown = []
    for number, parts in enumerate(_by_row(a, most)):
        shown.append(f"<h3>{_headline(a, parts)}</h3>{row(a, parts)}{_kept(a, number)}")
    left = counted(len(a) - most, "more row is", "more rows are")
    more = f'<p class="soft">{left} not shown.</p>' if len(a) > most else ""
    lead = (_explained(a) + text(note)).strip()
    above = (f"<p>{lead}</p>" if lead else "") + banner(notices(a))
    return (
        f"<section><h2>{text(a.method)}</h2>{above}{''.join(shown)}{more}"
        f'{_relevance(a.receipt)}<p class="soft">{LEGEND} {text(facts(a))}</p></section>'
    )


def compared(
    c: Comparison, most: int = 12, described: bool = False, notes: Mapping[str, Sequence[str]] | None = None
) -> str:
    """The same rows by every method, one under the other, and how far the methods agree; `notes` are by method."""
    first = next(iter(c.values()))
    legend = (
        f'<p class="soft">{LEGEND} {_explained(first)}Each method\'s colours are shares of its own largest value.</p>'
    )
    found = [] if described else [legend]
    by = {name: list(_by_row(a, most)) for name, a in c.items()}
    for number in range(min(len(first), most)):
        head = _headline(first, next(iter(by.values()))[number])
        blocks = "".join(
            f'<div class="method"><h4>{text(name)}</h4>{banner(notices(a))}{row(a, by[name][number])}'
            f'<p class="soft" style="font-size:.78rem">{_described(a) if described else ""}'
            f"{'<br>'.join(map(text, [facts(a), *(notes or {}).get(name, ())]))}</p></div>"
            for name, a in c.items()
        )
        found.append(f"<section><h3>{head}</h3>{blocks}</section>")
    return "".join(found) + _agreement(c)


_BOX = (  # with colours of its own, because a notebook has no style sheet of ours
    "background:var(--warn-wash,#fdf5dc);color:var(--warn-ink,#664700);border-left:3px solid var(--warn-line,#d9a514);"
    "padding:.4rem .75rem;margin:.5rem 0;border-radius:0 6px 6px 0;max-width:46rem;font-size:.9rem"
)
_OPEN = 2  # warnings that stand open; more are folded


def banner(messages: Sequence[str]) -> str:
    """Warnings as a box above the picture."""
    shown = [f'<p style="margin:.15rem 0;max-width:none">{text(message)}</p>' for message in messages]
    rest = "".join(shown[_OPEN:])
    more = f'<details><summary style="color:inherit">{len(shown) - _OPEN} more</summary>{rest}</details>'
    whole = "".join(shown[:_OPEN]) + (more if rest else "")
    return f'<div role="note" aria-label="Warning" style="{_BOX}">{whole}</div>' if whole else ""


def _explained(a: Attribution) -> str:
    """Which model it was, as far as it is known."""
    return f"Model: <b>{text(a.receipt['model'])}</b>. " if a.receipt.get("model") else ""


def _described(a: Attribution) -> str:
    return f"{text(methods[a.method].description)} {text(methods[a.method].paper)}<br>"


def _by_row(a: Attribution, most: int) -> list[list[Map]]:
    found: dict[int, list[Map]] = {}
    for part in maps(a, most):
        found.setdefault(part.row, []).append(part)
    return list(found.values())


def _headline(a: Attribution, parts: Sequence[Map]) -> str:
    part = parts[0]
    if a.several:
        return f"Row {part.row}, {len({p.target for p in parts})} targets"
    return f"Row {part.row}: {text(spelled(part.target))}, {text(part.scored)}{text(start_of(a, part.row))}"


def facts(a: Attribution) -> str:
    """What a run says about itself, in a sentence."""
    receipt = a.receipt
    ways = ((receipt.get(f"{way}_passes", 0), f"{way} pass") for way in ("forward", "backward"))
    said = [" and ".join(counted(count, noun, noun + "es") for count, noun in ways)]
    if sizes_of(a):
        said.append(sizes_of(a))
    if receipt.get("method_chosen"):
        said.append(f"no method was named, and {receipt['method_chosen']}")
    if a.gap is not None:
        said.append(f"worst completeness gap {float(a.gap.max()):.2g}")
    if receipt.get("tolerance_reached"):
        said.append(f"estimated error at most {max(receipt['tolerance_reached']):.2g}")
    if receipt.get("unruled"):
        said.append("plain derivative at " + ", ".join(sorted({item["op"] for item in receipt["unruled"]})))
    if receipt.get("unseen"):
        said.append("not seen: " + ", ".join(sorted({item["node"] for item in receipt["unseen"]})))
    return "; ".join(said) + "."


# ---- what lies behind an answer ----

_TOKENS = 40  # of an attention map with names on hover


def _kept(a: Attribution, number: int) -> str:
    """Attention by layer and head, where it was kept: every head small, each layer's mean with its tokens."""
    layers = a.kept.get("attention")
    if not isinstance(layers, list):
        return ""
    units = [spelled(unit) for unit in a.units[number]] if isinstance(a.units, list) else None
    lines = []
    for depth, layer in enumerate(layers):
        heads: Tensor = layer[number].detach().double().cpu()  # (heads, queries, keys)
        heads = heads if heads.dim() == 3 else heads[None]
        small = "".join(
            f'<img alt="layer {depth}, head {h}" title="layer {depth}, head {h}" style="width:4.2rem;margin:.15rem;'
            f'image-rendering:pixelated" src="{images.palette_png(head / (float(head.max()) or 1.0), ink=True)}">'
            for h, head in enumerate(heads)
        )
        mean = heads.mean(0)
        named = units is not None and len(units) == mean.shape[0] == mean.shape[1] and len(units) <= _TOKENS
        whole = matrix(mean, units, units) if named and units else ""
        lines.append(f"<h4>layer {depth}</h4><div>{small}</div>{whole}")
    return f"<details><summary>Attention, {counted(len(layers), 'layer')} by head</summary>{''.join(lines)}</details>"


def _relevance(receipt: Mapping[str, Any]) -> str:
    """Where relevance went, boundary by boundary."""
    if not receipt.get("relevance"):
        return ""
    lines = []
    for number, told in enumerate(receipt["relevance"][:4]):
        one = told[0] if isinstance(told, list) else told
        lost = ", ".join(f"{text(kind)} {amount:+.3g}" for kind, amount in one["lost"].items() if abs(amount) > 1e-6)
        stages = "".join(
            f"<tr><td>{text(layer['module'] or 'the model')}</td><td>{layer['carried']:+.4f}</td></tr>"
            for layer in cuts(one)
        )
        lines.append(
            f"<p>Row {number}: {one['start']:.4g} at the score, {one['end']:.4g} at the input; lost: {lost or '–'}.</p>"
            f'<table class="plain">{stages}</table>'
        )
    return f"<details><summary>Relevance from layer to layer</summary>{''.join(lines)}</details>"


def _agreement(c: Comparison) -> str:
    if len(c) < 2:
        return ""
    common, chance, rank = (c.agreement(kind).tolist() for kind in ("common", "chance", "rank"))
    head = "".join(f'<th style="{COLUMN}">{text(name)}</th>' for name in c)
    tables = []
    for found, beside in ((common, chance), (rank, None)):
        body = "".join(
            f'<tr><th style="text-align:left;padding-right:.5rem">{text(name)}</th>'
            + "".join(_correlation(x, None if beside is None else beside[i][j]) for j, x in enumerate(found[i]))
            + "</tr>"
            for i, name in enumerate(c)
        )
        tables.append(
            '<div class="wide" style="overflow-x:auto"><table style="border-collapse:collapse;font-size:.72rem">'
            f"<tr><td></td>{head}</tr>{body}</table></div>"
        )
    return (
        "<section><h2>How far the methods agree</h2><p>The share that two methods have in common, 1 − ½ Σ |a − b| of "
        "their values over the sum of magnitudes, mean over rows: 1 is the same map, 0 nothing in common; small beside "
        "it what chance has in common with them. – where a method has other units or is 0 everywhere.</p>"
        f"{tables[0]}<details><summary>Rank correlation</summary><p>1 is the same order of all units, 0 none, −1 the "
        f"reverse; units that neither method cares about count as much as others.</p>{tables[1]}</details></section>"
    )


def _correlation(x: float, chance: float | None = None) -> str:
    style = "padding:.2rem .28rem;text-align:right"
    if x != x:
        return f'<td style="{style}">–</td>'
    beside = "" if chance is None or chance != chance else f" <small>{chance:.2f}</small>"
    return f'<td style="{style};background:{wash(x)}">{round(x, 2) + 0.0:.2f}{beside}</td>'
