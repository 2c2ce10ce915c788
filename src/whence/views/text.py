"""Texts as they were written, each word or token in the colour of its value."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from whence.results.attribution import Attribution
from whence.util.terminal import clean
from whence.views.colours import share, wash
from whence.views.maps import spelled

FOLD = 120  # units of a text that are shown before it folds


def paragraphs(a: Attribution, row: int, values: Sequence[float]) -> str:
    """One row's text, or its two texts, with the values of its units behind them; hovering tells the number."""
    assert a.units is not None
    given = a.text[row] if a.text is not None else None
    texts = [given] if isinstance(given, str) else list(given or ())
    special = a.special[row] if a.special is not None else [False] * len(values)
    largest = largest_of(values, special)
    ink = not a.signed()
    marks = [_mark(unit, value, largest, ink) for unit, value in zip(a.units[row], values, strict=True)]
    if a.spans is None or not texts:
        return _paragraph(" ".join(marks), len(marks))
    spans = a.spans[row]
    segments = (a.segments or [[0] * len(marks)] * len(a))[row]
    found = []
    for number, text in enumerate(texts):
        pieces, last, count = [], 0, 0
        for i, (start, end) in enumerate(spans):
            if special[i] or (segments[i] or 0) != number or end <= start:
                continue
            start = max(start, last)  # pieces of one character overlap
            pieces += [_plain(text[last:start]), _mark(a.units[row][i], values[i], largest, ink, text[start:end])]
            last, count = end, count + 1
        found.append(_paragraph("".join([*pieces, _plain(text[last:])]), count))
    beside = [mark for i, mark in enumerate(marks) if special[i] and a.units[row][i] != "[PAD]"]
    return "".join(found) + (
        f'<p style="margin:.1rem 0;font-size:.8em;opacity:.85">{" ".join(beside)}</p>' if beside else ""
    )


def largest_of(values: Sequence[float], special: Sequence[bool]) -> float:
    """The largest magnitude among words, where they have any: [CLS] alone would leave them pale."""
    own = [abs(v) for v, alone in zip(values, special, strict=True) if v == v and not alone]
    return max(own, default=0.0) or max((abs(v) for v in values if v == v), default=0.0)


def _paragraph(inner: str, count: int) -> str:
    """In the direction of its first letters; a long one folds."""
    style = "margin:.3rem 0;line-height:1.9;overflow-wrap:anywhere;white-space:pre-wrap;max-width:70ch"
    whole = f'<p dir="auto" style="{style}">{inner}</p>'
    return whole if count <= FOLD else f"<details open><summary>{count} tokens</summary>{whole}</details>"


def _mark(unit: str, value: float, largest: float, ink: bool, written: str | None = None) -> str:
    part = share(value, largest)
    name = _plain(spelled(unit))
    shown = name if written is None else _plain(written)
    title = f"{name}: {value:.4g}" if ink else f"{name}: {value:+.4g}"
    if abs(part) < 0.02:
        return f'<span title="{title}">{shown}</span>'
    return f'<span title="{title}" style="background:{wash(part, ink)};border-radius:3px">{shown}</span>'


def _plain(text: str) -> str:
    """Escaped; line breaks stay, other control characters are spelled out."""
    return "\n".join(escape(clean(line)) for line in text.split("\n"))
