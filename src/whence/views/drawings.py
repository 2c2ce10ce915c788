"""How a comparison draws what one method says of a row, on the scale of all: one function for each kind of row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from whence.views import images
from whence.views.components import bar, key, number, side, strength, text, tops
from whence.views.families import title_of
from whence.views.maps import spelled
from whence.views.rows_html import figure
from whence.views.shares import Drawn, Scale
from whence.views.text import laid_out, plain, specials

_MUCH = 0.3  # of the scale: from here a line tells for and against apart without colour
_FOCUSED = 80  # units of a text that the keyboard may visit
_TOPS, _MINI = 3, 5  # units that are named below a text, and bars of a folded method
_CELLS, _COLUMNS = 4096, 80  # of a table of tokens; larger ones are pictures


# ---- texts ----


def reading(d: Drawn, scale: Scale, small: bool = False) -> str:
    """The text with each unit's share behind it."""
    (part,), (shares,) = d.maps, d.shares
    raw, numbers = part.values.tolist(), shares.tolist()
    units, visited = part.units or [], not small and len(numbers) <= _FOCUSED
    special = specials(d.a, 0, len(numbers))

    def mark(i: int, written: str | None) -> str:
        shown = plain(spelled(units[i])) if written is None else plain(written)
        if special[i]:
            return "" if units[i] == "[PAD]" else f'<span class="faint tiny">{shown}</span>'
        told = f"{d.said(numbers[i])} · {number(raw[i], 4)}"
        much = " much" if abs(numbers[i]) > _MUCH * scale.limit else ""
        focus = ' tabindex="0"' if visited else ""
        return (
            f'<span class="w {side(numbers[i], d.signed)}{much}" style="--a:{strength(numbers[i], scale.limit)}" '
            f'data-n="{text(told)}"{focus}>{shown}</span>'
        )

    laid = laid_out(d.a, 0, len(numbers), mark)
    body = "".join(f'<p class="reading{" small" if small else ""}" dir="auto">{inner}</p>' for inner, _ in laid)
    count = sum(count for _, count in laid)
    whole = body if count <= _FOLD else f"<details open><summary>{count} tokens</summary>{body}</details>"
    return whole + ("" if small else _tops(d))


_FOLD = 120  # units of a text that are shown before it folds


def _tops(d: Drawn) -> str:
    units = d.maps[0].units or []
    best = [(spelled(units[i]), d.said(value)) for i, value in d.strongest(_TOPS)]
    return tops(best, on_special(d))


def on_special(d: Drawn) -> str:
    """What is not drawn: the share of special tokens."""
    if d.aside < 0.005:
        return ""
    units, special = d.a.units, specials(d.a, 0, d.shares[0].shape[-1])
    names = dict.fromkeys(u for u, s in zip(units[0] if units else [], special, strict=False) if s and u != "[PAD]")
    shown = f"{100 * d.aside:.1f}" if d.aside > 0.99 else f"{100 * d.aside:.0f}"
    return f"{shown} % on {', '.join(map(spelled, names)) or 'special tokens'}"


def table_of_tokens(d: Drawn, scale: Scale, small: bool = False) -> str:
    """A line for each token that was written, a column for each that it may have come from; shares are of a line."""
    found = []
    for name in dict.fromkeys(part.input for part in d.maps):
        own = [(part, share) for part, share in zip(d.maps, d.shares, strict=True) if part.input == name]
        columns = [spelled(unit) for unit in own[0][0].units or []]
        title = f"<h4>{text(own[0][0].title)}</h4>" if name else ""
        found.append(title + _cells(d, [spelled(p.target) for p, _ in own], columns, [s for _, s in own], scale))
    return "".join(found) + (_aside(d))


def _aside(d: Drawn) -> str:
    told = on_special(d)
    return tops([], told) if told else ""


def _cells(d: Drawn, lines: Sequence[str], columns: Sequence[str], shares: Sequence[Tensor], scale: Scale) -> str:
    if len(columns) > _COLUMNS or len(columns) * len(lines) > _CELLS:
        grid = torch.stack(list(shares))
        label = f"{len(lines)} tokens by {len(columns)} tokens"
        return (
            f'<img alt="{label}" style="width:100%;image-rendering:pixelated" '
            f'src="{images.palette_png(grid / scale.limit, not d.signed)}">'
        )
    head = "".join(f'<th class="up"><span>{text(name)}</span></th>' for name in columns)
    body = "".join(
        f'<tr><th style="text-align:right">{text(line)}</th>'
        + "".join(
            f'<td class="c {side(v, d.signed)}" style="--a:{strength(v, scale.limit)}" '
            f'title="{text(line)} ← {text(columns[j])}: {d.said(v)}"></td>'
            for j, v in enumerate(share.tolist())
        )
        + "</tr>"
        for line, share in zip(lines, shares, strict=True)
    )
    return f'<div class="scroll"><table class="coloured"><tr><td></td>{head}</tr>{body}</table></div>'


# ---- images ----


def picture(d: Drawn, scale: Scale, small: bool = False) -> str:
    """The map over the image: colours where there is a sign, else the image as bright as it matters."""
    assert d.a.image is not None
    height, width = d.a.image.shape[-2:]
    found = []
    for grid in d.shown:
        layer = images.layer_png(grid / scale.limit, d.signed)
        coarse = " coarse" if grid.shape[0] < height else ""
        found.append(
            f'<span class="frame {"pale" if d.signed else "photo"}{coarse}" style="aspect-ratio:{width}/{height}">'
            f'<img alt="{text(title_of(d.name))}" src="{layer}"></span>'
        )
    return "".join(found)


def photo(d: Drawn) -> str:
    """The image that was explained."""
    assert d.a.image is not None
    height, width = d.a.image.shape[-2:]
    shape = f"aspect-ratio:{width}/{height}"
    return f'<span class="frame photo given" role="img" aria-label="the image" style="{shape}"></span>'


def pictures(drawn: Sequence[Drawn], scale: Scale, small: Callable[[Drawn], str], tight: bool = False) -> str:
    """What several methods say of the image; `tight` pictures are small."""
    figures = [
        f"<figure>{picture(d, scale)}<figcaption>{key(d.letter)}<h3>{text(title_of(d.name))}</h3></figcaption>"
        f'<p class="tiny faint">{text(small(d))}</p></figure>'
        for d in drawn
    ]
    return f'<div class="pictures{" tight" if tight else ""}">{"".join(figures)}</div>'


def image_style(d: Drawn) -> str:
    """The image itself, and in pale grey: once for all pictures that lie over it."""
    assert d.a.image is not None
    image = d.a.image[0].expand(3, -1, -1)
    pale, photo = images.png(images.pale(image)), images.png(image.permute(1, 2, 0))
    return f"--pale:url({pale});--photo:url({photo})"


def grid(d: Drawn, scale: Scale, small: bool = False) -> str:
    """Numbers that are no image, as coloured cells."""
    return "".join(
        figure(shares, part.title or "", not d.signed, part.units, scale.limit)
        for part, shares in zip(d.maps, d.shown, strict=True)
    )


def molecule(d: Drawn, scale: Scale, small: bool = False) -> str:
    """The drawing, its atoms and bonds in the colours of their shares."""
    from whence.views.molecules import svg

    by = {part.input: share for part, share in zip(d.maps, d.shares, strict=True)}
    named = next(part.units for part in d.maps if part.input == "atoms") or []
    order = by["atoms"].abs().argsort(descending=True, stable=True)[:_TOPS].tolist()
    best = [(named[i], d.said(float(by["atoms"][i]))) for i in order if i < len(named)]
    whole = f"{100 * float(by['pairs'].abs().sum()):.0f} % on bonds and pairs"
    return svg(d.a, d.maps, by, scale.limit) + tops(best, whole)


# ---- bars ----


def table_of_bars(drawn: Sequence[Drawn], scale: Scale) -> str:
    """Features down, the methods that are shown first across; the strongest first, all bars on one scale."""
    names = names_of(drawn[0])
    sizes = torch.stack([d.shares[0].abs() for d in drawn]).mean(0)
    order = sizes.argsort(descending=True, stable=True).tolist()
    head = "".join(
        f'<th>{key(d.letter)} <span class="wide-only">{text(title_of(d.name))}</span></th><th class="apart num"></th>'
        for d in drawn
    )
    body = []
    for i in order:
        cells = "".join(
            f'<td style="width:{72 / len(drawn):.0f}%" title="{text(number(float(d.maps[0].values[i]), 4))}">'
            f"{bar(float(d.shares[0][i]), scale.limit, d.signed)}"
            f'<span class="narrow-only">{d.said(float(d.shares[0][i]))}</span></td>'
            f'<td class="apart num">{d.said(float(d.shares[0][i]))}</td>'
            for d in drawn
        )
        body.append(f"<tr><th>{text(names[i])}</th>{cells}</tr>")
    return (
        f'<div class="scroll"><table class="bars" style="width:100%"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def names_of(d: Drawn) -> list[str]:
    """The names of a vector's units, or their numbers."""
    return [spelled(unit) for unit in d.maps[0].units or []] or [str(i) for i in range(len(d.shares[0]))]


def few_bars(d: Drawn, scale: Scale, small: bool = False) -> str:
    """The strongest features of one method."""
    names = names_of(d)
    lines = "".join(
        f'<tr><th style="width:40%">{text(names[i])}</th><td>{bar(value, scale.limit, d.signed)}</td>'
        f'<td class="num">{d.said(value)}</td></tr>'
        for i, value in d.strongest(_MINI)
    )
    return f'<table class="bars" style="width:100%;max-width:420px">{lines}</table>' if lines else "–"


DRAW: dict[str, Callable[..., str]] = {
    "text": reading, "generated": table_of_tokens, "image": picture, "molecule": molecule, "vector": few_bars,
    "numbers": grid,
}  # fmt: skip
