"""The parts of which pages are made: questions, predictions, warnings, legends, cards, agreement, curves, folds.

Functions of plain numbers and texts, which they escape; arguments named `inner` are HTML already.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path

from whence.util.terminal import clean
from whence.views.colours import share
from whence.views.maps import counted, percent

MINUS = "−"


@cache
def style() -> str:
    """The style sheet of every page."""
    return (Path(__file__).parent / "style.css").read_text(encoding="utf-8")


def text(value: object) -> str:
    """Escaped, without control characters."""
    return escape(clean(str(value)))


def page(title: str, inner: str, narrow: bool = False) -> str:
    """A whole page: it has no script and asks for nothing from outside."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f'<style>{style()}</style></head><body class="whence"><main{" class=narrow" if narrow else ""}>{inner}</main>'
        "</body></html>"
    )


def cell(inner: str) -> str:
    """The same as the output of a notebook's cell."""
    return f'<div class="whence"><style>{style()}</style>{inner}</div>'


# ---- numbers ----


def number(value: float, digits: int = 3) -> str:
    """A number with a true minus sign."""
    return f"{value:.{digits}g}".replace("-", MINUS)


def signed(value: float, signs: bool = True) -> str:
    """A share in percent, as a table has it: +41 %, −2.7 %."""
    size = 100 * abs(value)
    shown = f"{size:.0f}" if size >= 9.5 else f"{size:.1f}"
    lead = "" if not signs or float(shown) == 0 else MINUS if value < 0 else "+"
    return f"{lead}{shown} %"


def nice(value: float) -> float:
    """The next number upwards that reads well."""
    if not value > 0 or math.isinf(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if m * power >= value * (1 - 1e-9))


def strength(value: float, limit: float) -> str:
    """How much of its colour a share has, as the style sheet reads it."""
    return f"{abs(share(value, limit)) ** 0.85:.2f}".rstrip("0").rstrip(".") or "0"


def side(value: float, has_sign: bool) -> str:
    """The class of a value: for, against, or of a size only."""
    return "size" if not has_sign else "for" if value >= 0 else "against"


# ---- the question ----


def opening(question: str, inner: str, beside: str, level: int = 1) -> str:
    """The question as the heading, what was given below it, and the prediction beside them."""
    head = f'<h{level} class="question">{text(question)}</h{level}>'
    return f'<header class="opening"><div>{head}{inner}</div>{beside}</header>'


def predictions(classes: Sequence[tuple[str, float, bool]], note: str = "") -> str:
    """Names of classes with their probabilities, and whether it is the one that is explained."""
    bars = "".join(
        f'<div class="pred{" asked" if asked else ""}"><span>{text(name)}</span>'
        f'<span class="bar"><i style="width:{100 * min(1.0, max(0.0, p)):.1f}%"></i></span>'
        f'<span class="num">{text(percent(p))}</span></div>'
        for name, p, asked in classes
    )
    more = f'<p class="tiny faint" style="padding:4px 8px">{text(note)}</p>' if note else ""
    return f'<div class="preds" role="group" aria-label="Prediction">{bars}{more}</div>'


_SIGN = (
    '<svg viewBox="0 0 16 16" aria-hidden="true"><path d="M8 1.5 15 14H1z" fill="none" stroke="currentColor" '
    'stroke-width="1.4" stroke-linejoin="round"/><path d="M8 6v4M8 11.6v.8" stroke="currentColor" stroke-width="1.6"/>'
    "</svg>"
)
_OPEN = 2  # warnings that stand open; more are folded


def warnings(told: Sequence[tuple[str, str]]) -> str:
    """Warnings, each with whom it is about (which may be empty), above the picture; two stand open."""
    boxes = [
        f'<div class="warn" role="note" aria-label="Warning">{_SIGN}<p>{f"<b>{text(who)}.</b> " if who else ""}'
        f"{text(what)}</p></div>"
        for who, what in told
    ]
    more = (
        f"<details><summary>{counted(len(boxes) - _OPEN, 'more warning')}</summary>{''.join(boxes[_OPEN:])}</details>"
    )
    whole = "".join(boxes[:_OPEN]) + (more if boxes[_OPEN:] else "")
    return f'<div class="warns">{whole}</div>' if whole else ""


# ---- legends ----


def legend(scales: Sequence[str], note: str = "") -> str:
    """Scales with their numbers."""
    beside = f'<span class="faint" style="max-width:90ch">{text(note)}</span>' if note else ""
    return f'<div class="legend">{"".join(scales)}{beside}</div>'


def scale(kind: str, ticks: Sequence[str], ends: tuple[str, str] = ("against", "for")) -> str:
    """One scale: its kind is a class of the style sheet."""
    marks = "".join(f"<span>{text(tick)}</span>" for tick in ticks)
    return (
        f'<figure><span>{text(ends[0])}</span><span class="scale {kind}"></span><span>{text(ends[1])}</span>'
        f'<span class="ticks">{marks}</span></figure>'
    )


def key(letter: str) -> str:
    """The letter that names a method in card, chart, matrix and warning."""
    return f'<span class="key" style="--k:var(--k{(ord(letter) - ord("A")) % 4})">{letter}</span>' if letter else ""


def card(letter: str, title: str, beside: str, inner: str, small: str) -> str:
    """What one method says: its name, the picture, and the small print."""
    head = f'<header>{key(letter)}<h3>{text(title)}</h3><span class="tiny faint">{text(beside)}</span></header>'
    return f'<article class="card">{head}{inner}<p class="tiny faint">{text(small)}</p></article>'


def tops(units: Sequence[tuple[str, str]], aside: str = "") -> str:
    """The strongest units with their numbers, and what is not drawn."""
    named = "".join(f"<span><b>{text(name)}</b> {text(value)}</span>" for name, value in units)
    return f'<p class="tops">{named}{f"<span class=faint>{text(aside)}</span>" if aside else ""}</p>'


def fold(title: str, question: str, end: str, inner: str) -> str:
    """A part that opens on demand; the line that stays says what it asks."""
    return (
        f'<details class="fold"><summary><b>{text(title)}</b><span class="ask soft">{text(question)}</span>'
        f'<span class="end num faint">{text(end)}</span></summary><div class="inside">{inner}</div></details>'
    )


# ---- agreement ----


def agreement(names: Sequence[str], common: Sequence[Sequence[float]], chance: Sequence[float], mixed: bool) -> str:
    """What each two of a few methods have in common, and chance with each; `names` begin with their letters."""
    head = "".join(f"<th>{text(name[:1])}</th>" for name in names)
    lines = []
    for i, name in enumerate(names):
        cells = "".join(_shared(common[i][j]) if j < i else f'<td class="faint">{"–" if i == j else ""}</td>'
                        for j in range(len(names)))  # fmt: skip
        lines.append(f"<tr><th>{text(name)}</th>{cells}</tr>")
    by_chance = "".join(f'<td class="faint">{_part(x)}</td>' for x in chance)
    lines.append(f'<tr><th class="faint">random</th>{by_chance}</tr>')
    note = '<p class="tiny faint" style="margin-top:6px">Of magnitudes, where one has no sign.</p>' if mixed else ""
    return (
        f'<div class="scroll"><table class="mat"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>{note}"
    )


def _shared(x: float) -> str:
    return f'<td class="c size" style="--a:{0 if math.isnan(x) else max(0.0, x):.2f}">{_part(x)}</td>'


def _part(x: float) -> str:
    return "–" if math.isnan(x) else f"{100 * x:.0f} %"


def all_agreement(names: Sequence[str], common: Sequence[Sequence[float]]) -> str:
    """The same of many methods: darker is more, and hovering tells the number."""
    head = "".join(f'<th class="up"><span>{text(name)}</span></th>' for name in names)
    body = "".join(
        f"<tr><th>{text(name)}</th>"
        + "".join(
            f'<td class="c size" style="--a:{0 if math.isnan(x) else max(0.0, x):.2f}" '
            f'title="{text(name)}, {text(names[j])}: {_part(x)}"></td>'
            for j, x in enumerate(common[i])
        )
        + "</tr>"
        for i, name in enumerate(names)
    )
    return f'<div class="scroll"><table class="bigmat"><thead><tr><th></th>{head}</tr></thead>{body}</table></div>'


# ---- curves ----

_DASHES = ("", "7 4", "2 3", "10 3 2 3")
_W, _H, _LEFT, _RIGHT, _TOP, _BOTTOM = 340, 190, 38, 12, 10, 32


def curves(
    lines: Mapping[str, Sequence[float]], band: tuple[Sequence[float], Sequence[float], Sequence[float]],
    places: Sequence[int], left: Mapping[str, float], label: str, below: str,
) -> str:  # fmt: skip
    """Probabilities as units go: one line a method, by letter; what chance does (mean, low, high) is a grey band.

    `left` are the curves' means, by letter, and chance's by "".
    """
    last = places[-1] or 1

    def at(place: float, p: float) -> str:
        x = _LEFT + (_W - _LEFT - _RIGHT) * place / last
        return f"{x:.1f} {_TOP + (_H - _TOP - _BOTTOM) * (1 - p):.1f}"

    def path(ys: Sequence[float]) -> str:
        return "M" + "L".join(at(place, y) for place, y in zip(places, ys, strict=True))

    mean, low, high = band
    down = "L".join(at(place, y) for place, y in reversed(list(zip(places, low, strict=True))))
    parts = []
    for p in (0.0, 0.5, 1.0):
        y = at(0, p).split()[1]
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_W - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{100 * p:.0f} %</text>')
    for place in _ticks(last):
        x = at(place, 0).split()[0]
        parts.append(f'<text x="{x}" y="{_H - _BOTTOM + 16}" text-anchor="middle">{place}</text>')
    parts.append(
        f'<path class="band" d="{path(high)}L{down}Z"/><path class="ln" d="{path(mean)}" stroke="var(--edge)"/>'
    )
    for letter, ys in lines.items():
        number = (ord(letter) - ord("A")) % 4
        dash = f' stroke-dasharray="{_DASHES[number]}"' if _DASHES[number] else ""
        parts.append(f'<path class="ln" d="{path(ys)}" stroke="var(--k{number})"{dash}/>')
    middle = (_LEFT + _W - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_H - 3}" text-anchor="middle">{text(below)}</text>')
    means = "".join(f"<span>{key(letter)} {_part(left[letter])} left</span>" for letter in lines)
    return (
        f'<svg class="chart" viewBox="0 0 {_W} {_H}" role="img" aria-label="{text(label)}">{"".join(parts)}</svg>'
        f'<p class="keys">{means}<span class="faint">grey: random, {_part(left[""])} left</span></p>'
    )


def _ticks(last: int) -> list[int]:
    step = max(1, round(nice(last / 5)))
    return list(range(0, last + 1, step))


# ---- bars ----


def bar(value: float, limit: float, has_sign: bool) -> str:
    """One share as a bar; those without a sign begin at the left."""
    part = abs(share(value, limit))
    if not has_sign:
        return f'<div class="div left"><i class="size" style="left:0;width:{100 * part:.1f}%"></i></div>'
    left = 50 - 50 * part if value < 0 else 50
    return f'<div class="div"><i class="{side(value, True)}" style="left:{left:.1f}%;width:{50 * part:.1f}%"></i></div>'
