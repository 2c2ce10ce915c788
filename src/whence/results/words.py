"""Tokens merged into the words that they are pieces of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.errors import InputError
from whence.results.text_units import WHOLE

if TYPE_CHECKING:
    from whence.results.attribution import Attribution

Word = tuple[str, tuple[int, int], bool]  # what is shown, its span, whether it is special


def merged(a: Attribution) -> Attribution:
    """One value per word, the sum of its tokens'; special tokens stay by themselves."""
    if a.words is None or not a.one_input:
        raise InputError(
            "merge_words() needs to know the words.\n"
            "  Explain a text through its tokenizer: whence.load(…) or whence.wrap(model, tokenizer)."
        )
    groups = [groups_of(a, row) for row in range(len(a))]
    words = [[_word(a, row, group) for group in own] for row, own in enumerate(groups)]
    length = max(map(len, words))
    lead = a.values.shape[: 1 + a.several]
    values, parts = a.values.new_zeros(*lead, length), summable(a)
    for row, own in enumerate(groups):
        for i, group in enumerate(own):
            values[row, ..., i] = parts[row][..., group].sum(-1)
    real = torch.tensor([[i < len(own) for i in range(length)] for own in words], device="cpu")
    blank: Word = ("[PAD]", (0, 0), True)
    filled = [[*own, *[blank] * (length - len(own))] for own in words]
    segments = None
    if a.segments is not None:
        of = [[a.segments[row][group[0]] for group in some] for row, some in enumerate(groups)]
        segments = [[*some, *[None] * (length - len(some))] for some in of]
    return replace(
        a, values=values, raw=values, raising=None, real=real, words=None, segments=segments,
        units=[[unit for unit, _, _ in row] for row in filled], spans=[[span for _, span, _ in row] for row in filled],
        special=[[alone for _, _, alone in row] for row in filled], channel_axis=None,
    )  # fmt: skip


def summable(a: Attribution) -> Tensor:
    """Values of tokens that may be added up: those that were removed together share their unit's value equally.

    Methods in `WHOLE` give each of these tokens all of it.
    """
    units = a.params.get("units")
    if a.method not in WHOLE or not (isinstance(units, int | Tensor) or (units == "words" and a.words is not None)):
        return a.values
    size = torch.ones(len(a), a.values.shape[-1], dtype=a.values.dtype, device=a.values.device)
    for row in range(len(a)):
        for group in _removed_together(a, row, units):
            size[row, group] = len(group)
    return a.values / (size[:, None] if a.several else size)


def _removed_together(a: Attribution, row: int, units: Any) -> list[list[int]]:
    if isinstance(units, str):
        return groups_of(a, row)
    real = range(a.values.shape[-1]) if a.real is None else a.real[row].nonzero().flatten().tolist()
    if isinstance(units, Tensor):
        numbers = units[row if len(units) > 1 else 0].tolist()
        number = {i: numbers[i] for i in real if i < len(numbers) and numbers[i] >= 0}
    else:
        number = {i: i // units for i in real}
    groups: dict[int, list[int]] = {}
    for i, own in number.items():
        groups.setdefault(own, []).append(i)
    return list(groups.values())


def groups_of(a: Attribution, row: int) -> list[list[int]]:
    """The tokens of each word; a special token is a group of its own, padding belongs to none."""
    assert a.words is not None
    groups: dict[Any, list[int]] = {}
    for i, word in enumerate(a.words[row]):
        if a.real is not None and not bool(a.real[row, i]):
            continue
        segment = a.segments[row][i] if a.segments is not None else 0
        groups.setdefault(("alone", i) if word is None else (segment, word), []).append(i)
    return list(groups.values())


def _word(a: Attribution, row: int, group: list[int]) -> Word:
    assert a.units is not None
    assert a.spans is not None
    assert a.special is not None
    spans = [a.spans[row][i] for i in group]
    spans = [(start, end) for start, end in spans if start < end] or spans  # spaces count to the word after them
    span = (min(start for start, _ in spans), max(end for _, end in spans))
    if a.special[row][group[0]] or a.text is None or span[0] == span[1]:
        return (a.units[row][group[0]], span, a.special[row][group[0]])
    text = a.text[row]
    source = text if isinstance(text, str) else text[a.segments[row][group[0]] if a.segments else 0]
    return (source[span[0] : span[1]], span, False)
