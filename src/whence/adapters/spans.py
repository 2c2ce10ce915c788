"""Character spans of tokens, also for tokenizers that give none, and the words that tokens belong to."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

Span = tuple[int, int]
_MARKS = ("##", "Ġ", "▁", "</w>", "@@")


def aligned_spans(
    tokenizer: Any, tokens: Sequence[str], special: Sequence[bool], segments: Sequence[int | None],
    texts: Sequence[str],
) -> list[Span]:  # fmt: skip
    """The spans of tokens whose tokenizer does not give them."""
    return _by_pieces(tokenizer, tokens, segments, texts) or _aligned(tokens, special, segments, texts)


def has_marks(text: str) -> bool:
    """Whether a text has combining marks."""
    return not text.isascii() and any(unicodedata.category(letter)[0] == "M" for letter in set(text))


def stripped(text: str, span: Span, marks: bool = True) -> Span:
    """A span without leading spaces and with the combining marks of its last letter, if the text has `marks`."""
    start, end = span
    while start < end and text[start].isspace():
        start += 1
    if not marks:
        return (start, end)
    start = next((p for p in range(start, end) if unicodedata.category(text[p])[0] != "M"), start)
    while start < end < len(text) and unicodedata.category(text[end])[0] == "M":
        end += 1
    return (start, end)


def _by_pieces(
    tokenizer: Any, units: Sequence[str], segments: Sequence[int | None], texts: Sequence[str]
) -> list[Span] | None:
    """Spans by splitting texts as word-piece tokenizers do; None if the pieces alone give other tokens."""
    found: list[Span] = [(0, 0)] * len(units)
    for segment, text in enumerate(texts):
        places = [i for i, of in enumerate(segments) if of == segment]
        read = [(piece, token) for piece in _pieces(text) for token in tokenizer.tokenize(text[piece[0] : piece[1]])]
        if [token for _, token in read] != [units[i] for i in places]:
            return None
        for piece in dict.fromkeys(piece for piece, _ in read):
            mine = [i for i, (of, _) in zip(places, read, strict=True) if of == piece]
            within = _aligned(
                [units[i] for i in mine], [False] * len(mine), [0] * len(mine), [text[piece[0] : piece[1]]]
            )
            for i, (start, end) in zip(mine, within, strict=True):
                found[i] = piece if len(mine) == 1 else (piece[0] + start, piece[0] + end)
    return found


_CHINESE = (  # characters that word-piece tokenizers split off
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


def _pieces(text: str) -> list[Span]:
    """Words without spaces; punctuation and Chinese characters stand alone."""
    found: list[Span] = []
    joins = False
    for place, character in enumerate(text):
        alone = _is_sign(character) or any(first <= ord(character) <= last for first, last in _CHINESE)
        if character.isspace():
            joins = False
        elif joins and not alone:
            found[-1] = (found[-1][0], place + 1)
        else:
            found.append((place, place + 1))
            joins = not alone
    return found


def _aligned(
    units: Sequence[str], special: Sequence[bool], segments: Sequence[int | None], texts: Sequence[str]
) -> list[Span]:
    """Spans by looking for each token where the last one ended; an unknown token is the next word there."""
    folded = [_folded(text) for text in texts]
    cursor = [0] * len(texts)
    skipped = [0] * len(texts)  # unknown tokens since the last one that was found: each stands for something
    found: list[Span] = []
    unknown: list[int] = []
    for unit, is_special, segment in zip(units, special, segments, strict=True):
        if is_special or segment is None:
            found.append((0, 0))
            continue
        plain, positions = folded[segment]
        token = _folded(_bare(unit))[0].strip()
        at = plain.find(token, cursor[segment] + skipped[segment]) if token else -1
        if at < 0:
            skipped[segment] += 1
            unknown.append(len(found))
            found.append((-1, -1))
            continue
        cursor[segment], skipped[segment] = at + len(token), 0
        found.append((positions[at], positions[at + len(token) - 1] + 1))
    for i in unknown:
        found[i] = _word_between(found, i, segments, texts)
    return found


def _word_between(found: Sequence[Span], i: int, segments: Sequence[int | None], texts: Sequence[str]) -> Span:
    """The first word between the neighbours of an unknown token."""
    segment = segments[i] or 0
    before = max((b for j, (_, b) in enumerate(found[:i]) if segments[j] == segments[i] and b >= 0), default=0)
    ends = (a for j, (a, _) in enumerate(found) if j > i and segments[j] == segments[i] and a >= 0)
    after = min(ends, default=len(texts[segment]))
    text = texts[segment]
    start = next((p for p in range(before, after) if not text[p].isspace()), before)
    end = start + (start < after)
    while end < after and not (text[end].isspace() or _is_sign(text[end]) or _is_sign(text[start])):
        end += 1
    return (start, end)


def _is_sign(character: str) -> bool:
    """Punctuation, as word-piece tokenizers split it off."""
    ascii_sign = character.isascii() and not character.isalnum() and not character.isspace()
    return ascii_sign or unicodedata.category(character)[0] == "P"


def _bare(unit: str) -> str:
    for mark in _MARKS:
        unit = unit.removeprefix(mark).removesuffix(mark)
    return unit


def _folded(text: str) -> tuple[str, list[int]]:
    """The text in lower case without accents, and the position that each character came from."""
    letters, positions = [], []
    for position, character in enumerate(text):
        for part in unicodedata.normalize("NFD", character.lower()):
            if unicodedata.category(part) != "Mn":
                letters.append(part)
                positions.append(position)
    return "".join(letters), positions


# ---- words ----


def word_numbers(
    texts: Sequence[str], spans: Sequence[Span], special: Sequence[bool], segments: Sequence[int | None]
) -> list[int | None]:
    """The number of the word that each token begins in: letters, digits and their marks together, other signs alone."""
    ends = [[end for _, end in words_in(text)] for text in texts]
    return [
        None if alone or (found := bisect_right(ends[g or 0], span[0])) >= len(ends[g or 0]) else found
        for span, alone, g in zip(spans, special, segments, strict=True)
    ]


_WORD = re.compile(r"[\w'’]+|[^\w'’\s]")  # in a text without marks


def words_in(text: str) -> list[Span]:
    """The spans of a text's words."""
    if not has_marks(text):
        return [word.span() for word in _WORD.finditer(text)]
    found: list[Span] = []
    inside = False
    for place, character in enumerate(text):
        mark = unicodedata.category(character)[0] == "M"
        letter = character.isalnum() or character in "_'’" or mark
        if character.isspace():
            inside = False
        elif found and found[-1][1] == place and (mark or (inside and letter)):
            found[-1] = (found[-1][0], place + 1)
        else:
            found.append((place, place + 1))
            inside = letter
    return found
