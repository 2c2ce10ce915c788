"""Texts as they were written, each word or token in the colour of its value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from whence.results.attribution import Attribution
from whence.util.terminal import clean
from whence.views.colours import share, wash
from whence.views.maps import spelled

FOLD = 120  # units of a text that are shown before it folds


def paragraphs(a: Attribution, row: int, values: Sequence[float]) -> str:
    """One row's text, or its two texts, with the values of its units behind them; hovering tells the number."""
    assert a.units is not None
    units, special = a.units[row], specials(a, row, len(values))
    largest, ink = largest_of(values, special), not a.signed()

    def mark(i: int, written: str | None) -> str:
        return _mark(units[i], values[i], largest, ink, written)

    laid = laid_out(a, row, len(values), mark)
    found = "".join(_paragraph(inner, count) for inner, count in laid)
    if not _written(a, row):
        return found
    beside = [mark(i, None) for i, alone in enumerate(special) if alone and units[i] != "[PAD]"]
    return found + (f'<p style="margin:.1rem 0;font-size:.8em;opacity:.85">{" ".join(beside)}</p>' if beside else "")


def specials(a: Attribution, row: int, count: int) -> list[bool]:
    """Which units of a row are special tokens or padding."""
    return a.special[row] if a.special is not None else [False] * count


def laid_out(a: Attribution, row: int, count: int, mark: Callable[[int, str | None], str]) -> list[tuple[str, int]]:
    """Each text of a row as it was written with its units marked, and how many there are: (HTML, units).

    `mark` gets a unit's number and its letters. Special tokens stand in no text; without a text, units are in a row.
    """
    if not (texts := _written(a, row)):
        return [(" ".join(mark(i, None) for i in range(count)), count)]
    assert a.spans is not None
    special, segments = specials(a, row, count), (a.segments or [[0] * count] * len(a))[row]
    found = []
    for number, text in enumerate(texts):
        pieces, last, seen = [], 0, 0
        for i, (start, end) in enumerate(a.spans[row]):
            if special[i] or (segments[i] or 0) != number or end <= start:
                continue
            start = max(start, last)  # pieces of one character overlap
            pieces += [plain(text[last:start]), mark(i, text[start:end])]
            last, seen = end, seen + 1
        found.append(("".join([*pieces, plain(text[last:])]), seen))
    return found


def _written(a: Attribution, row: int) -> list[str]:
    """The texts of a row, where it is known which letters its units are."""
    given = a.text[row] if a.text is not None and a.spans is not None else None
    return [given] if isinstance(given, str) else list(given or ())


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
    name = plain(spelled(unit))
    shown = name if written is None else plain(written)
    title = f"{name}: {value:.4g}" if ink else f"{name}: {value:+.4g}"
    if abs(part) < 0.02:
        return f'<span title="{title}">{shown}</span>'
    return f'<span title="{title}" style="background:{wash(part, ink)};border-radius:3px">{shown}</span>'


def plain(text: str) -> str:
    """Escaped; line breaks stay, other control characters are spelled out."""
    return "\n".join(escape(clean(line)) for line in text.split("\n"))
