"""Units of texts that are larger than tokens: words, sentences, paragraphs, lines, messages, or spans with names.

A token belongs to the unit that it begins in, spaces to the one that follows, and what is between two units to the one
before. A chat template's tokens are one unit of their own, and so are an answer's, so that sums stay what they were.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from whence.errors import InputError, ParameterError, did_you_mean
from whence.util.keys import SOURCE, WRITTEN

if TYPE_CHECKING:
    from whence.results.attribution import Attribution

NAMES = ("words", "sentences", "paragraphs", "lines", "messages")
TEMPLATE, ANSWER, REST = "[template]", "[answer]", "[rest]"  # units that are none of the text's own
WHOLE = frozenset(
    {"leave_one_out", "occlusion", "permutation", "lime", "context_cite"}
)  # every token has its removed unit's value
Part = tuple[str, int, int]  # what is shown, and where it begins and ends in the text
_SENTENCE = re.compile(r"\S[^\n]*?(?:[.!?。！？…]+[\"'”’)\]]*(?=\s|$)|(?<=[。！？])|$)", re.MULTILINE)
_ENDS = {"Mr", "Mrs", "Ms", "Dr", "Prof", "St", "vs", "etc", "e.g", "i.e", "cf", "Fig", "No"}  # not with a full stop


def is_text_unit(units: Any) -> bool:
    """Whether this names units of texts: one of the names, or spans by name."""
    return (isinstance(units, str) and units in NAMES) or isinstance(units, Mapping)


def of_source(units: Any) -> Any:
    """Units by the name of an encoder's and a decoder's input: those of the text that is read; others as they are."""
    own = units.get(SOURCE) if is_by_side(units) else units
    return own if is_text_unit(own) else units


def is_by_side(units: Any) -> bool:
    """Whether units are given by the name of an encoder's and a decoder's input."""
    return isinstance(units, Mapping) and bool(units) and set(units) <= {SOURCE, WRITTEN}


def parts_of(text: Any, units: Any, messages: Sequence[tuple[str, int, int]] | None) -> list[Part]:
    """The units of a text in order: those of a conversation never reach from one message into the next."""
    if not isinstance(text, str):
        raise ParameterError(f'units={units!r} is for one text, but a pair was given.\n  Give units="words".')
    if isinstance(units, Mapping):
        return _named(text, units)
    if units == "messages":
        if messages is None:
            raise ParameterError('units="messages" is for conversations.\n  Give a list of messages, or other units.')
        return [(role, start, end) for role, start, end in messages]
    if units not in NAMES:
        raise ParameterError(f"units={units!r} is not known. {did_you_mean(str(units), NAMES)}")
    places = [(0, len(text))] if messages is None else [(start, end) for _, start, end in messages]
    return [
        (text[start + a : start + b], start + a, start + b)
        for start, end in places
        for a, b in _split(text[start:end], units)
    ]


def _split(text: str, units: str) -> list[tuple[int, int]]:
    if units == "sentences":
        return _sentences(text)
    if units == "words":
        from whence.adapters.spans import words_in

        return words_in(text)
    pattern = {
        "lines": re.compile(r"[^\n]*\S[^\n]*"),
        "paragraphs": re.compile(r"\S(?:.|\n(?!\s*\n))*"),
    }
    return [_stripped(text, *found.span()) for found in pattern[units].finditer(text)]


def _sentences(text: str) -> list[tuple[int, int]]:
    """Up to a full stop, a question or an exclamation mark before a space, or the end of a line."""
    found: list[tuple[int, int]] = []
    joins = False
    for match in _SENTENCE.finditer(text):
        start, end = _stripped(text, *match.span())
        found = [*found[:-1], (found[-1][0], end)] if joins else [*found, (start, end)]
        last = text[start:end].rsplit(None, 1)[-1]
        joins = last.endswith(".") and last[:-1] in _ENDS
    return found


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    whole = text[start:end]
    return start + len(whole) - len(whole.lstrip()), start + len(whole.rstrip())


def _named(text: str, units: Mapping[Any, Any]) -> list[Part]:
    """Spans by name: two ends, or the text itself, which must be there once."""
    found = []
    for name, place in units.items():
        if isinstance(place, str):
            if text.count(place) != 1 or not place:
                raise ParameterError(
                    f"units={{{name!r}: …}}: its text is there {text.count(place)} times.\n  Give (start, end) instead."
                )
            start = text.index(place)
            place = (start, start + len(place))
        if not (isinstance(place, tuple | list) and len(place) == 2 and 0 <= place[0] < place[1] <= len(text)):
            raise ParameterError(
                f"units={{{name!r}: {place!r}}} is not a part of the text of {len(text)} characters.\n"
                "  Give where it begins and ends, or its text."
            )
        found.append((str(name), int(place[0]), int(place[1])))
    found.sort(key=lambda part: part[1])
    for one, other in pairwise(found):
        if one[2] > other[1]:
            raise ParameterError(f"units= {one[0]!r} and {other[0]!r} overlap.\n  Give spans that do not.")
    return found


def numbers_of(
    parts: Sequence[Part], spans: Sequence[tuple[int, int]], special: Sequence[bool], own: int, exact: bool
) -> list[int]:
    """The number of each token's part; −1: the template's, −2: one of the answer's `own` last tokens, −3: none of them.

    With `exact`, what stands outside of all parts is in none of them.
    """
    numbers = []
    for i, ((start, end), alone) in enumerate(zip(spans, special, strict=True)):
        inside = [n for n, (_, a, b) in enumerate(parts) if a <= start < b]
        before = [n for n, (_, a, _) in enumerate(parts) if a <= max(start, end - 1)] if not exact else []
        if exact and inside and start < end:
            numbers.append(inside[0])  # also of a template, if asked for
        elif alone:
            numbers.append(-1)
        elif i >= len(spans) - own:
            numbers.append(-2)
        else:
            numbers.append(inside[0] if inside else before[-1] if before else -3 if exact or not parts else 0)
    return numbers


def merged(a: Attribution, units: Any, *, absolute: bool = False, removed: bool = False) -> Attribution:
    """One value per unit, the sum of its tokens' (or of their magnitudes).

    `removed`: units were removed as such, and a method that gives its tokens the unit's whole value did not share it.
    """
    if a.sides is not None and not a.one_input:
        from whence.results.sides import merged as merged_sides

        return merged_sides(a, units, absolute=absolute, removed=removed)
    units = of_source(units)
    if a.spans is None or a.special is None or a.text is None or not a.one_input:
        raise InputError(
            f"units={units!r} needs one text with its tokens.\n"
            "  Explain a text with whence.load or whence.wrap; of an encoder and a decoder, read `values` by name."
        )
    rows = [_merged_row(a, row, units, absolute, removed) for row in range(len(a))]
    length = max(len(parts) for parts, _ in rows)
    lead = a.values.shape[: 1 + a.several]
    values = a.values.new_zeros(*lead, length)
    for row, (parts, own) in enumerate(rows):
        values[row, ..., : len(parts)] = own
    real = torch.tensor([[i < len(parts) for i in range(length)] for parts, _ in rows], device="cpu")
    filled = [[*parts, *[("[PAD]", 0, 0)] * (length - len(parts))] for parts, _ in rows]
    apart = (TEMPLATE, "[PAD]")
    named = units if isinstance(units, str) else sorted(map(str, units))
    return replace(
        a, values=values, raw=values, raising=None, real=real, words=None, segments=None, channel_axis=None,
        units=[[name for name, _, _ in row] for row in filled],
        spans=[[(start, end) for _, start, end in row] for row in filled],
        special=[[name in apart and start == end for name, start, end in row] for row in filled],
        params={**a.params, "units": named, "absolute": absolute},
    )  # fmt: skip


def _merged_row(a: Attribution, row: int, units: Any, absolute: bool, removed: bool) -> tuple[list[Part], Any]:
    assert a.spans is not None
    assert a.special is not None
    assert a.text is not None
    from whence.results.words import summable

    parts = parts_of(a.text[row], units, a.messages[row] if a.messages is not None else None)
    own = a.answer[row][1] if a.answer is not None else 0
    count = len(a.spans[row]) if a.real is None else int(a.real[row].sum())
    numbers = numbers_of(parts, a.spans[row][:count], a.special[row][:count], own, isinstance(units, Mapping))
    others = [(-1, TEMPLATE), (-2, ANSWER), (-3, REST)]
    shown = [*enumerate(parts), *((n, (name, 0, 0)) for n, name in others if n in numbers)]
    columns = []
    values = (a.values if removed else summable(a))[row]
    for number, _ in shown:
        tokens = [i for i, n in enumerate(numbers) if n == number]
        own_values = values[..., tokens]
        own_values = own_values.abs() if absolute else own_values
        whole = removed and a.method in WHOLE and tokens
        columns.append(own_values.mean(-1) if whole else own_values.sum(-1))
    return [part for _, part in shown], torch.stack(columns, -1)
