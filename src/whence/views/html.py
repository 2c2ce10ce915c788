"""One attribution as a self-contained HTML page: inline styles, escaped text, no script, no request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from whence.results.attribution import Attribution
from whence.views import components, images
from whence.views.colours import wash
from whence.views.components import text
from whence.views.maps import Map, counted, maps, notices, sizes_of, spelled, start_of
from whence.views.rows_html import figure, heatmap, matrix, row
from whence.views.terminal import cuts

__all__ = ["facts", "figure", "heatmap", "page", "section", "text"]

LEGEND = "".join(
    f'<span style="background:{wash(part / 4)};color:var(--ink,inherit);padding:.1rem .55rem">{name}</span>'
    for part, name in [(-4, "against"), (-2, ""), (0, "nothing"), (2, ""), (4, "for")]
)


def page(title: str, sections: Sequence[str], lead: str = "") -> str:
    """A whole page under its title."""
    return components.page(title, f"<div><h1>{text(title)}</h1>{lead}{''.join(sections)}</div>", narrow=True)


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
        said.append(f"no method was named, so Whence chose {receipt['method_chosen']}")
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
