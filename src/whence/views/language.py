"""A language model's answer over its prompt: each sentence of the answer opens the prompt in its colours.

Messages are blocks with their sums, the strongest sources are listed, and what carries little is folded. There is no
script: a sentence is the summary of its own fold.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from whence.results.attribution import Attribution
from whence.results.citations import sentences_of
from whence.results.text_units import ANSWER, TEMPLATE
from whence.views.colours import share, wash
from whence.views.components import text
from whence.views.maps import Map
from whence.views.text import plain

_SOURCES = 3  # that are listed
_LITTLE, _RUN = 0.05, 4  # a share of the largest value, and so many units below it in a row, which fold
_BLOCK = "margin:.5rem 0;padding:.35rem .8rem;border-left:2px solid rgba(128,128,128,.4);max-width:70ch"
_TEXT = "margin:.2rem 0;line-height:1.9;overflow-wrap:anywhere;white-space:pre-wrap"
_SMALL = "font-size:.85em;opacity:.85"


def is_answer(a: Attribution, maps: list[Map]) -> bool:
    """Whether each token of an answer was explained by larger units of one prompt."""
    known = a.answer is not None and a.spans is not None and a.text is not None and a.params.get("units") is not None
    return known and a.several and a.one_input and len(a) == 1 and isinstance((a.text or [""])[0], str)


def answer(a: Attribution, maps: list[Map]) -> str:
    """Every sentence of the answer, the first one open."""
    found = []
    for number, (sentence, _, values) in enumerate(sentences_of(a)):
        opened = " open" if number == 0 else ""
        found.append(f"<details{opened}><summary><b>{plain(sentence)}</b></summary>{_prompt(a, values)}</details>")
    return "".join(found)


def _prompt(a: Attribution, values: Tensor) -> str:
    """The prompt in the colours of one sentence's values, its sources, and what rests on nothing of it."""
    assert a.units is not None
    assert a.spans is not None
    assert a.text is not None
    numbers = values.tolist()
    places = [(i, span) for i, span in enumerate(a.spans[0]) if span[0] < span[1]]
    largest = max((abs(numbers[i]) for i, _ in places), default=0.0)
    blocks = (a.messages[0] if a.messages is not None else None) or [("prompt", 0, len(a.text[0]))]
    shown = "".join(_block(a, block, places, numbers, largest) for block in blocks)
    best = sorted(places, key=lambda place: -numbers[place[0]])[:_SOURCES]
    items = "".join(f"<li>{plain(a.units[0][i])} <b>{numbers[i]:+.4g}</b></li>" for i, _ in best)
    names = {ANSWER: "the answer so far", TEMPLATE: "the chat template", "[rest]": "the rest of the prompt"}
    beside = [
        f"{names[unit]} {numbers[i]:+.4g}"
        for i, unit in enumerate(a.units[0])
        if unit in names and a.spans[0][i][0] == a.spans[0][i][1]
    ]
    told = f'<p style="{_SMALL}">Beside it: {text(", ".join(beside))}.</p>' if beside else ""
    return f'<ol style="margin:.3rem 0 .3rem 1.2rem;list-style:decimal">{items}</ol>{shown}{told}'


def _block(
    a: Attribution, block: tuple[str, int, int], places: Sequence[tuple[int, tuple[int, int]]], numbers: list[float],
    largest: float,
) -> str:  # fmt: skip
    """One message: who speaks, its sum, and its text with the values of its units behind them."""
    assert a.text is not None
    role, start, end = block
    own = [(i, span) for i, span in places if start <= span[0] < end]
    pieces: list[tuple[str, bool]] = []  # HTML, and whether it carries little
    last = start
    for i, (begin, stop) in own:
        begin = max(begin, last)
        part = share(numbers[i], largest)
        colour = "" if abs(part) < 0.02 else f' style="background:{wash(part, not a.signed())};border-radius:3px"'
        before, inside = plain(a.text[0][last:begin]), plain(a.text[0][begin:stop])
        pieces.append((f'{before}<span title="{numbers[i]:+.4g}"{colour}>{inside}</span>', abs(part) < _LITTLE))
        last = stop
    rest = plain(a.text[0][last:end])
    total = sum(numbers[i] for i, _ in own)
    head = f'<div style="{_SMALL}">{text(role)} <b>{total:+.4g}</b></div>'
    return f'<div style="{_BLOCK}">{head}<div dir="auto" style="{_TEXT}">{_folded(pieces)}{rest}</div></div>'


def _folded(pieces: Sequence[tuple[str, bool]]) -> str:
    """The units in order; a long run of those that carry little is a fold."""
    found: list[str] = []
    run: list[str] = []
    for written, little in [*pieces, ("", False)]:
        if little:
            run.append(written)
            continue
        folds = len(run) >= _RUN
        found += (
            [f"<details><summary>… {len(run)} that carry little</summary>{''.join(run)}</details>"] if folds else run
        )
        found.append(written)
        run = []
    return "".join(found)
