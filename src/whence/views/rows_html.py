"""What one row looks like: a text, a generated text, an image, a molecule, bars, or a map of numbers. One table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from whence.results.attribution import Attribution
from whence.views import images, language
from whence.views.colours import share, solid, wash
from whence.views.components import text
from whence.views.maps import Map, has_tokens, spelled
from whence.views.text import paragraphs

_CELLS = 256  # a larger map is a picture, without the numbers on hover: pages of many maps must scroll
_BARS = 40  # units that are shown as bars
_COLUMNS, _TABLE = 80, 4096  # of a matrix, and its cells; more are a picture

Draw = Callable[[Attribution, list[Map]], str]


def row(a: Attribution, maps: list[Map]) -> str:
    """One row in the first form that fits it."""
    return next(draw for fits, draw in KINDS if fits(a, maps))(a, maps)


# ---- texts ----


def is_text(a: Attribution, maps: list[Map]) -> bool:
    return len(maps) == 1 and has_tokens(a) and maps[0].units is not None and maps[0].values.dim() == 1


def text_row(a: Attribution, maps: list[Map]) -> str:
    return paragraphs(a, maps[0].row, maps[0].values.tolist())


def is_generated(a: Attribution, maps: list[Map]) -> bool:
    return a.several and has_tokens(a) and all(m.values.dim() == 1 and m.units is not None for m in maps)


def generated(a: Attribution, maps: list[Map]) -> str:
    """A table for each input: a line for each token that was written, a column for each that it came from."""
    found = []
    for name in dict.fromkeys(m.input for m in maps):
        own = [m for m in maps if m.input == name]
        title = f"<h4>{text(own[0].title)}</h4>" if name else ""
        lines, columns = [spelled(m.target) for m in own], [spelled(unit) for unit in own[0].units or []]
        shown = title + matrix(torch.stack([m.values for m in own]), lines, columns, not own[0].signed)
        found.append(f'<div style="max-width:100%">{shown}</div>')
    return f'<div style="display:flex;flex-wrap:wrap;gap:0 2.5rem">{"".join(found)}</div>'


def matrix(values: Tensor, lines: Sequence[str], columns: Sequence[str], ink: bool = False) -> str:
    """Numbers as coloured cells under their column's name, with the number on hover."""
    grid = values.detach().double().cpu()
    largest = float(grid.nan_to_num(0.0, 0.0, 0.0).abs().max())
    if len(columns) > _COLUMNS or len(columns) * len(lines) > _TABLE:
        return heatmap(grid, f"{len(lines)} tokens by {len(columns)} tokens", ink)
    head = "".join(f'<th style="{COLUMN}">{text(name)}</th>' for name in columns)
    body = []
    for line, numbers_of in zip(lines, grid.tolist(), strict=True):
        cells = "".join(
            f'<td title="{text(line)} ← {text(name)}: {v:+.4g}" style="background:{wash(share(v, largest), ink)};'
            'padding:.55rem .7rem"></td>'
            for name, v in zip(columns, numbers_of, strict=True)
        )
        body.append(f'<tr><th style="text-align:right;padding-right:.5rem">{text(line)}</th>{cells}</tr>')
    return (
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;font-size:.8rem">'
        f"<tr><td></td>{head}</tr>{''.join(body)}</table></div>"
    )


COLUMN = "writing-mode:vertical-rl;transform:rotate(180deg);text-align:left;font-weight:normal;padding:.2rem 0"


# ---- images ----


def is_image(a: Attribution, maps: list[Map]) -> bool:
    return a.image is not None and all(m.values.dim() in (2, 3) for m in maps)


def image(a: Attribution, maps: list[Map]) -> str:
    assert a.image is not None
    found = []
    for part in maps:
        shown = a.image[part.row].expand(3, -1, -1)
        views: dict[str, Tensor | None] = {
            "the image": shown.permute(1, 2, 0),
            "what speaks for (orange) and against (blue)": images.overlay(shown, part.values),
            "the image, as bright as it matters": images.masked(shown, part.values),
            "for": images.thin_side(shown, part.values, 1),
            "against": images.thin_side(shown, part.values, -1),
            "around the strongest tenth": images.contour(shown, part.values),
        }
        size = (shown.shape[2], shown.shape[1])
        found += [
            nothing(size, title) if pixels is None else picture(images.png(pixels), title)
            for title, pixels in views.items()
        ]
    return f'<div style="{_GRID}">{"".join(found)}</div>'


_GRID = "display:grid;grid-template-columns:repeat(auto-fill,minmax(8.5rem,1fr));gap:.8rem;margin:.5rem 0"


def picture(address: str, title: str) -> str:
    """A picture and what it shows."""
    style = f"width:100%;image-rendering:pixelated;border-radius:4px;{_PAPER}"
    return _captioned(f'<img alt="{text(title)}" src="{address}" style="{style}">', title)


def nothing(size: tuple[int, int], title: str) -> str:
    """In the place of a picture (of this width and height) that would be empty."""
    style = f"aspect-ratio:{size[0]}/{size[1]};display:grid;place-items:center;border-radius:4px;{_PAPER}{_SMALL}"
    return _captioned(f'<div style="{style}">nothing</div>', title)


def _captioned(inner: str, title: str) -> str:
    return f'<figure style="margin:0">{inner}<figcaption style="{_SMALL}">{text(title)}</figcaption></figure>'


_PAPER = "background:rgba(128,128,128,.12);"  # grey on light and on dark pages
_SMALL = "font-size:.78rem;opacity:.8"


# ---- molecules ----


def is_molecule(a: Attribution, maps: list[Map]) -> bool:
    return not a.several and {m.input for m in maps} == {"atoms", "pairs"} and a.text is not None


def molecule(a: Attribution, maps: list[Map]) -> str:
    """The drawing, and its strongest atoms."""
    from whence.views.molecules import strongest, svg

    assert a.text is not None
    names, values, left = strongest(maps)
    more = f'<p style="{_SMALL}">… and {left} more</p>' if left else ""
    return f"<p><code>{text(a.text[maps[0].row])}</code></p>{svg(a, maps)}{bars(names, values)}{more}"


# ---- numbers ----


def is_vector(a: Attribution, maps: list[Map]) -> bool:
    return not a.several and len(maps) == 1 and maps[0].values.dim() == 1 and len(maps[0].values) <= _BARS


def vector(a: Attribution, maps: list[Map]) -> str:
    """Bars in the units' order; from the baseline's score to the input's, where the values sum to the difference."""
    part = maps[0]
    values = part.values.tolist()
    names = part.units or [str(i) for i in range(len(values))]
    start = None if a.gap is None or a.baseline_value is None else float(a.baseline_value[part.row])
    return (
        bars(names, values, not part.signed)
        if start is None
        else waterfall(names, values, start, part.score, part.space)
    )


def is_named(a: Attribution, maps: list[Map]) -> bool:
    """Several inputs of units with names, such as an encoder's sentences and a decoder's words."""
    few = sum(len(m.values) if m.values.dim() == 1 else _BARS + 1 for m in maps) <= _BARS
    return not a.several and len(maps) > 1 and few and all(m.units is not None for m in maps)


def named(a: Attribution, maps: list[Map]) -> str:
    """Bars for each input, all on one scale."""
    largest = max((abs(v) for m in maps for v in m.values.tolist() if v == v), default=0.0)
    found = []
    for m in maps:
        there = [i for i in range(len(m.values)) if m.real is None or bool(m.real[i])]
        units, values = m.units or [], m.values.tolist()
        own = bars([units[i] for i in there], [values[i] for i in there], not m.signed, largest)
        found.append(f"<h4>{text(m.title)}</h4>{own}")
    return "".join(found)


def bars(names: Sequence[str], values: Sequence[float], ink: bool = False, largest: float | None = None) -> str:
    """One bar per unit, to the right for, to the left against; the `largest` value fills a side."""
    largest = max((abs(v) for v in values if v == v), default=0.0) if largest is None else largest
    lines, sign = [], "" if ink else "+"
    for name, value in zip(names, values, strict=True):
        part = share(value, largest)
        lines.append(
            _bar_line(name, _bar(50 + min(0.0, part) * 50, abs(part) * 50, _side(value, ink)), f"{value:{sign}.4g}")
        )
    return _lines(lines)


def waterfall(names: Sequence[str], values: Sequence[float], start: float, end: float, space: str) -> str:
    """Each unit's step from the baseline's score to the input's, the largest first."""
    order = sorted(range(len(values)), key=lambda i: -abs(values[i]))
    places, now = [], start
    for i in order:
        places.append((now, now + values[i]))
        now += values[i]
    low = min([start, end, *(min(p) for p in places)])
    high = max([start, end, *(max(p) for p in places)])
    width = (high - low) or 1.0

    def bar(a: float, b: float, colour: str) -> str:
        return _bar((min(a, b) - low) / width * 100, max(abs(b - a) / width * 100, 0.4), colour)

    lines = [_bar_line("baseline", bar(start, start, "currentColor"), f"{start:.4g}")]
    for i, (a, b) in zip(order, places, strict=True):
        lines.append(_bar_line(names[i], bar(a, b, _side(values[i])), f"{values[i]:+.4g}"))
    return _lines([*lines, _bar_line(space, bar(end, end, "currentColor"), f"{end:.4g}")])


def _bar(left: float, width: float, colour: str) -> str:
    return f'<i style="position:absolute;left:{left:.1f}%;width:{width:.1f}%;height:100%;background:{colour}"></i>'


def _side(value: float, ink: bool = False) -> str:
    return wash(1.0, ink) if ink else solid(1.0 if value > 0 else -1.0)


def _bar_line(name: str, bar: str, number: str) -> str:
    return (
        f'<span style="overflow-wrap:anywhere;text-align:right">{text(name)}</span>'
        f'<span style="position:relative;height:.95rem;background:rgba(128,128,128,.12)">{bar}</span>'
        f"<span>{number}</span>"
    )


def _lines(lines: Sequence[str]) -> str:
    style = (
        "display:grid;grid-template-columns:minmax(4rem,max-content) minmax(6rem,22rem) max-content;gap:.15rem .6rem"
    )
    return f'<div style="{style};align-items:center;font-size:.85rem;margin:.4rem 0">{"".join(lines)}</div>'


def numbers(a: Attribution, maps: list[Map]) -> str:
    return f'<div style="{_GRID}">{"".join(figure(m.values, m.caption, not m.signed, m.units) for m in maps)}</div>'


def figure(
    values: Tensor, caption: str, ink: bool = False, names: Sequence[str] | None = None, limit: float = 0.0
) -> str:
    """A map of numbers as coloured cells, with the numbers on hover; `limit`, if not 0, has the fullest colour."""
    grid = images.flat(values)
    wide = "grid-column:1/-1;max-width:none;" if grid.dim() < 2 else ""
    named = names if grid.dim() == 1 else None
    shown = heatmap(grid.reshape(1, -1) if grid.dim() < 2 else grid, caption, ink, named, limit)
    return f'<figure style="margin:0;{wide}">{shown}<figcaption style="{_SMALL}">{text(caption)}</figcaption></figure>'


def heatmap(
    grid: Tensor, label: str = "", ink: bool = False, names: Sequence[str] | None = None, limit: float = 0.0
) -> str:
    """A 2-D grid on one scale: cells with numbers on hover, or a picture where there are many."""
    rows, columns = grid.shape
    grid = grid.nan_to_num(0.0, 0.0, 0.0)
    largest = limit or float(grid.abs().max()) or 1.0
    strip = "height:2.2rem;" if rows == 1 else ""
    if rows * columns > _CELLS:
        address = images.palette_png(grid / largest, ink)
        return f'<img alt="{text(label)}" style="width:100%;{strip}image-rendering:pixelated" src="{address}">'
    cells = "".join(
        f'<rect x="{x}" y="{y}" width="1.02" height="1.02" fill="{solid(value / largest, ink)}">'
        f"<title>{f'({y}, {x})' if names is None else text(names[x])}: {value:.4g}</title></rect>"
        for y, line in enumerate(grid.tolist())
        for x, value in enumerate(line)
    )
    return (
        f'<svg role="img" aria-label="{text(label)}" viewBox="0 0 {columns} {rows}" preserveAspectRatio="none" '
        f'style="display:block;width:100%;background:#fff;border-radius:4px;{strip}max-width:{columns * 2.5:.1f}rem" '
        f'shape-rendering="crispEdges">{cells}</svg>'
    )


KINDS: tuple[tuple[Callable[[Attribution, list[Map]], bool], Draw], ...] = (
    (is_molecule, molecule),
    (language.is_answer, language.answer),
    (is_generated, generated),
    (is_text, text_row),
    (is_image, image),
    (is_vector, vector),
    (is_named, named),
    (lambda a, maps: True, numbers),
)
