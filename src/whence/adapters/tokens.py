"""Text to tokens: ids, the character span and the word of each token, what is special, and texts that are too long."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from whence.adapters.decoding import units_of
from whence.errors import InputError

Long = Literal["error", "truncate", "window"]
Span = tuple[int, int]
_ENDLESS = 10**9  # what tokenizers without a limit say
_MARKS = ("##", "Ġ", "▁", "</w>", "@@")


@dataclass(frozen=True, eq=False)
class Tokens:
    """One text, or a window of it, as a model takes it."""

    ids: dict[str, list[int]]
    units: list[str]
    spans: list[Span]  # (0, 0) for special tokens
    special: list[bool]
    words: list[int | None]  # number of the word in its text
    text: tuple[str, ...]  # one, or a pair
    segments: list[int | None] = field(default_factory=list)  # which text each token is of
    whole: Tokens | None = None  # of a window
    places: list[int] = field(default_factory=list)  # of a window's tokens in the whole

    def __len__(self) -> int:
        return len(self.units)


def limit_of(tokenizer: Any, config: Any) -> int | None:
    """How many tokens a model takes, if there is a limit."""
    own = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if own is not None and getattr(config, "model_type", "") in _OFFSET:
        own -= (getattr(config, "pad_token_id", None) or 0) + 1
    asked = getattr(tokenizer, "model_max_length", None)
    limits = [n for n in (own, asked) if isinstance(n, int) and 0 < n < _ENDLESS]
    return min(limits) if limits else None


_OFFSET = frozenset(  # positions begin after the padding's
    """roberta xlm-roberta xlm-roberta-xl camembert longformer mpnet roberta-prelayernorm data2vec-text xmod ibert luke
    esm""".split()
)


def tokens_of(
    tokenizer: Any, texts: Sequence[str], limit: int | None = None, long: Long = "error", place: int = 0,
    windows: bool = True,
) -> list[Tokens]:  # fmt: skip
    """One text or a pair as tokens; several windows of it if it is too long and that is wanted and possible."""
    whole = _encoded(tokenizer, texts)
    if limit is None or len(whole) <= limit:
        return [whole]
    if long == "error":
        window = ' or long="window" (windows that overlap, of which each token takes the mean)'
        raise InputError(
            f"Text {place} has {len(whole)} tokens, and the model takes {limit}.\n"
            '  Load or wrap the model with long="truncate" (its beginning alone)'
            f"{window if windows and len(texts) == 1 else ''}."
        )
    if len(texts) > 1 and long == "window":
        raise InputError(
            f'Text {place} is a pair of {len(whole)} tokens, and the model takes {limit}.\n  Use long="truncate".'
        )
    if len(texts) > 1:
        return [_shortened(whole, limit)]
    room = limit - sum(whole.special)
    if room < 1:
        raise InputError(f"The model takes {limit} tokens, and special tokens alone are {sum(whole.special)}.")
    return _windows(whole, room, long)


def _shortened(whole: Tokens, limit: int) -> Tokens:
    """A pair without the last tokens of the longer text, again and again."""
    kept = list(range(len(whole)))
    while len(kept) > limit:
        sizes = [sum(whole.segments[i] == segment for i in kept) for segment in (0, 1)]
        longer = sizes.index(max(sizes))
        kept.remove(max(i for i in kept if whole.segments[i] == longer))
    return _taken(whole, kept)


def _taken(whole: Tokens, kept: list[int]) -> Tokens:
    """Some of a text's tokens."""
    ids = {name: [values[i] for i in kept] for name, values in whole.ids.items()}

    def pick(values: list[Any]) -> list[Any]:
        return [values[i] for i in kept]

    return Tokens(
        ids, pick(whole.units), pick(whole.spans), pick(whole.special), pick(whole.words), whole.text,
        pick(whole.segments), whole, kept,
    )  # fmt: skip


def _windows(whole: Tokens, room: int, long: Long) -> list[Tokens]:
    """The text's tokens in stretches that overlap by half, each between the special tokens of the whole."""
    inner = [i for i, special in enumerate(whole.special) if not special]
    first, last = inner[0], inner[-1]
    step = max(1, room // 2)
    starts = [0] if long == "truncate" else [*range(0, len(inner) - room, step), len(inner) - room]
    found = []
    for start in starts:
        kept = {*range(first), *inner[start : start + room], *range(last + 1, len(whole))}
        chosen = [i for i in range(len(whole)) if i in kept or (whole.special[i] and first < i < last)]
        found.append(_taken(whole, chosen))
    return found


def silent(tokenizer: Any) -> dict[str, bool]:
    """What keeps transformers from warning of long texts, of which Whence has its own word."""
    return {"verbose": False} if hasattr(tokenizer, "deprecation_warnings") else {}


def _encoded(tokenizer: Any, texts: Sequence[str]) -> Tokens:
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"A text is {type(text).__name__}.\n  Give a string, or a pair of strings.")
    fast = bool(getattr(tokenizer, "is_fast", False))
    asked = {"return_special_tokens_mask": True, "truncation": False, **silent(tokenizer)}
    given = tokenizer(*texts, **asked, **({"return_offsets_mapping": True} if fast else {}))
    ids = list(given["input_ids"])
    if not ids:
        raise InputError("A text has no tokens.\n  Give one that is not empty.")
    special = [bool(s) for s in given["special_tokens_mask"]]
    if fast:
        segments = list(given.sequence_ids(0)) if hasattr(given, "sequence_ids") else [0] * len(ids)
        spans = [(int(a), int(b)) for a, b in given["offset_mapping"]]
    else:
        tokens = tokenizer.convert_ids_to_tokens(ids)
        segments = _segments(given, special)
        spans = _by_pieces(tokenizer, tokens, segments, texts) or _aligned(tokens, special, segments, texts)
    spans = [
        (0, 0) if s else _stripped(texts[g or 0], span) for span, s, g in zip(spans, special, segments, strict=True)
    ]
    words = _words(texts, spans, special, segments)
    names = [n for n in ("input_ids", "attention_mask", "token_type_ids") if n in given]
    units = units_of(tokenizer, ids)
    return Tokens({n: list(given[n]) for n in names}, units, spans, special, words, tuple(texts), segments)


def _stripped(text: str, span: Span) -> Span:
    """A span without the space that some tokenizers count to the next word, and with the marks of its last letter."""
    start, end = span
    while start < end and text[start].isspace():
        start += 1
    start = next((p for p in range(start, end) if unicodedata.category(text[p])[0] != "M"), start)
    while start < end < len(text) and unicodedata.category(text[end])[0] == "M":
        end += 1
    return (start, end)


def _segments(given: Any, special: Sequence[bool]) -> list[int | None]:
    """Which text a slow tokenizer's tokens are of: the second begins after the special token that ends the first."""
    kinds = given.get("token_type_ids")
    if kinds is not None and any(kinds):
        return [None if s else int(kind) for s, kind in zip(special, kinds, strict=True)]
    found: list[int | None] = []
    seen, ended = False, False
    for s in special:
        ended |= s and seen
        seen |= not s
        found.append(None if s else int(ended))
    return found


# ---- spans without a tokenizer that knows them ----


def _by_pieces(
    tokenizer: Any, units: Sequence[str], segments: Sequence[int | None], texts: Sequence[str]
) -> list[Span] | None:
    """Spans by cutting texts as word-piece tokenizers do, each piece read alone; None if that gives other tokens."""
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


_CHINESE = (  # what word-piece tokenizers set apart
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
    """Each token looked for in its text, from where the last one ended; what is unknown spans up to the next one."""
    folded = [_folded(text) for text in texts]
    cursor = [0] * len(texts)
    skipped = [0] * len(texts)  # unknown tokens since the last one that was found: each stands for something
    found: list[Span] = []
    unknown: list[int] = []
    for unit, is_special, segment in zip(units, special, segments, strict=True):
        if is_special or segment is None:
            found.append((0, 0))
            continue
        plain, places = folded[segment]
        token = _folded(_bare(unit))[0].strip()
        at = plain.find(token, cursor[segment] + skipped[segment]) if token else -1
        if at < 0:
            skipped[segment] += 1
            unknown.append(len(found))
            found.append((-1, -1))
            continue
        cursor[segment], skipped[segment] = at + len(token), 0
        found.append((places[at], places[at + len(token) - 1] + 1))
    for i in unknown:
        found[i] = _word_between(found, i, segments, texts)
    return found


def _word_between(found: Sequence[Span], i: int, segments: Sequence[int | None], texts: Sequence[str]) -> Span:
    """The first word between a token's neighbours that were found: what an unknown token stands for."""
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
    """Punctuation, as word-piece tokenizers cut it off."""
    ascii_sign = character.isascii() and not character.isalnum() and not character.isspace()
    return ascii_sign or unicodedata.category(character)[0] == "P"


def _bare(unit: str) -> str:
    for mark in _MARKS:
        unit = unit.removeprefix(mark).removesuffix(mark)
    return unit


def _folded(text: str) -> tuple[str, list[int]]:
    """Lower case without accents, and the place in the text that each character came from."""
    letters, places = [], []
    for place, character in enumerate(text):
        for part in unicodedata.normalize("NFD", character.lower()):
            if unicodedata.category(part) != "Mn":
                letters.append(part)
                places.append(place)
    return "".join(letters), places


# ---- words ----


def _words(
    texts: Sequence[str], spans: Sequence[Span], special: Sequence[bool], segments: Sequence[int | None]
) -> list[int | None]:
    """The number of the word that each token begins in: letters, digits and their marks together, other signs alone."""
    ends = [[end for _, end in words_in(text)] for text in texts]
    return [
        None if alone or (found := bisect_right(ends[g or 0], span[0])) >= len(ends[g or 0]) else found
        for span, alone, g in zip(spans, special, segments, strict=True)
    ]


def words_in(text: str) -> list[Span]:
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


# ---- batches ----


def batch(tokens: Sequence[Tokens], pad: int, device: torch.device) -> dict[str, Tensor]:
    """Rows of one length, padded on the right; a mask says where."""
    length = max(map(len, tokens))
    names = {name for t in tokens for name in t.ids} | {"attention_mask"}
    found = {}
    for name in sorted(names):
        fill = pad if name == "input_ids" else 0
        rows = [t.ids.get(name, [1] * len(t)) for t in tokens]
        found[name] = torch.tensor([[*row, *[fill] * (length - len(row))] for row in rows], device=device)
    return found
