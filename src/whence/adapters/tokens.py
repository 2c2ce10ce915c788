"""Texts as tokens: ids, spans, words and special tokens; texts that are too long, truncated or in windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from whence.adapters.chats import Conversation
from whence.adapters.decoding import Reader
from whence.adapters.spans import Span, aligned_spans, has_marks, stripped, word_numbers
from whence.errors import InputError

Long = Literal["error", "truncate", "window"]
_ENDLESS = 10**9  # tokenizers without a limit give a larger number


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
    positions: list[int] = field(default_factory=list)  # of a window's tokens in the whole

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


def tokens_of_all(
    tokenizer: Any, rows: Sequence[Sequence[str]], limit: int | None = None, long: Long = "error", windows: bool = True
) -> list[list[Tokens]]:
    """Each row of one text or a pair as tokens; truncated or in windows if it is too long, as `long` says."""
    wholes = zip(rows, _encoded(tokenizer, rows), strict=True)
    return [_fitted(texts, whole, limit, long, row, windows) for row, (texts, whole) in enumerate(wholes)]


def tokens_of(
    tokenizer: Any, texts: Sequence[str], limit: int | None = None, long: Long = "error", windows: bool = True
) -> list[Tokens]:
    """As `tokens_of_all`, of one row."""
    return tokens_of_all(tokenizer, [texts], limit, long, windows)[0]


def _fitted(
    texts: Sequence[str], whole: Tokens, limit: int | None, long: Long, row: int, windows: bool
) -> list[Tokens]:
    if limit is None or len(whole) <= limit:
        return [whole]
    if long == "error":
        window = ' or long="window" (overlapping windows, averaged for each token)'
        raise InputError(
            f"Text {row} has {len(whole)} tokens, but the model takes {limit}.\n"
            '  Load or wrap the model with long="truncate" (the beginning only)'
            f"{window if windows and len(texts) == 1 else ''}."
        )
    if len(texts) > 1 and long == "window":
        raise InputError(
            f'Text {row} is a pair of {len(whole)} tokens, but the model takes {limit}.\n  Use long="truncate".'
        )
    if len(texts) > 1:
        return [_shortened(whole, limit)]
    room = limit - sum(whole.special)
    if room < 1:
        raise InputError(f"The model takes {limit} tokens, but special tokens alone are {sum(whole.special)}.")
    return _windows(whole, room, long)


def _shortened(whole: Tokens, limit: int) -> Tokens:
    """A pair without the last tokens of its longer text, until it fits."""
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
    """Windows that overlap by half, each between the special tokens of the whole text."""
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
    """The option that keeps transformers from warning about long texts, which Whence reports itself."""
    return {"verbose": False} if hasattr(tokenizer, "deprecation_warnings") else {}


def _encoded(tokenizer: Any, rows: Sequence[Sequence[str]]) -> list[Tokens]:
    """Each row as tokens; a fast tokenizer is called once for all texts, and once for all pairs."""
    for text in (text for texts in rows for text in texts):
        if not isinstance(text, str):
            raise InputError(f"A text is {type(text).__name__}.\n  Give a string, or a pair of strings.")
    fast = bool(getattr(tokenizer, "is_fast", False))
    asked = {"return_special_tokens_mask": True, "truncation": False, **silent(tokenizer)}
    reader = Reader(tokenizer)
    by_row: dict[int, Tokens] = {}
    if fast and hasattr(tokenizer, "backend_tokenizer"):
        # transformers takes an empty second text for none
        kinds = [(1 + any(texts[1:]), isinstance(texts[0], Conversation)) for texts in rows]
        for kind in sorted(set(kinds)):
            numbers = [row for row, own in enumerate(kinds) if own == kind]
            columns = [[rows[row][i] for row in numbers] for i in range(kind[0])]
            given = tokenizer(*columns, **asked, **_plainly(kind[1]), return_offsets_mapping=True)
            for i, row in enumerate(numbers):
                own = {name: given[name][i] for name in given}
                by_row[row] = _read(tokenizer, reader, rows[row], own, given.sequence_ids(i), own["offset_mapping"])
        return [by_row[row] for row in range(len(rows))]
    return [_one_by_one(tokenizer, reader, texts, asked, fast) for texts in rows]


def _one_by_one(tokenizer: Any, reader: Reader, texts: Sequence[str], asked: dict[str, bool], fast: bool) -> Tokens:
    """A row of a tokenizer that is slow, or not one of transformers'."""
    plainly = _plainly(isinstance(texts[0], Conversation))
    given = tokenizer(*texts, **asked, **plainly, **({"return_offsets_mapping": True} if fast else {}))
    segments = None
    if fast:
        segments = given.sequence_ids(0) if hasattr(given, "sequence_ids") else [0] * len(given["input_ids"])
    return _read(tokenizer, reader, texts, given, segments, given["offset_mapping"] if fast else None)


def _read(tokenizer: Any, reader: Reader, texts: Sequence[str], given: Any, segments: Any, offsets: Any) -> Tokens:
    """The tokens of a row; which text each is of, and where, is found out if the tokenizer does not say it."""
    ids = list(given["input_ids"])
    if not ids:
        raise InputError("A text has no tokens.\n  Give one that is not empty.")
    special = [bool(s) for s in given["special_tokens_mask"]]
    segments = _segments(given, special) if segments is None else list(segments)
    if offsets is None:
        offsets = aligned_spans(tokenizer, tokenizer.convert_ids_to_tokens(ids), special, segments, texts)
    marks = [has_marks(text) for text in texts]
    spans = [
        (0, 0) if s else stripped(texts[g or 0], (int(start), int(end)), marks[g or 0])
        for (start, end), s, g in zip(offsets, special, segments, strict=True)
    ]
    if isinstance(texts[0], Conversation):
        special = [s or not _within(place, texts[0]) for place, s in zip(offsets, special, strict=True)]
    words = word_numbers(texts, spans, special, segments)
    names = [n for n in ("input_ids", "attention_mask", "token_type_ids") if n in given]
    return Tokens({n: list(given[n]) for n in names}, reader.units(ids), spans, special, words, tuple(texts), segments)


def _plainly(conversation: bool) -> dict[str, bool]:
    """A chat template writes the special tokens itself."""
    return {"add_special_tokens": False} if conversation else {}


def _within(place: Sequence[int], text: Conversation) -> bool:
    """Whether a token has a part of a message's content, and is not the template's."""
    return any(max(start, int(place[0])) < min(end, int(place[1])) for _, start, end in text.messages)


def _segments(given: Any, special: Sequence[bool]) -> list[int | None]:
    """The text that each token of a slow tokenizer is from; the second one begins after a special token."""
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


def batch(tokens: Sequence[Tokens], pad: int, device: torch.device) -> dict[str, Tensor]:
    """The tensors of a batch, padded on the right, with its attention mask."""
    length = max(map(len, tokens))
    names = {name for t in tokens for name in t.ids} | {"attention_mask"}
    found = {}
    for name in sorted(names):
        fill = pad if name == "input_ids" else 0
        rows = [t.ids.get(name, [1] * len(t)) for t in tokens]
        found[name] = torch.tensor([[*row, *[fill] * (length - len(row))] for row in rows], device=device)
    return found
