"""Tokens of byte-level and SentencePiece tokenizers as readable text.

A character whose bytes are split over tokens is shown in each of them with its part, 国⟨1/3⟩; bytes that are not a
character are shown in hexadecimal, ⟨e5 9b⟩. WordPiece's tokens keep their ##.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # how SentencePiece writes a byte of a character that it does not know
_SPACE, _END = "▁", "</w>"
_CONTEXT = 4  # tokens before others, after which these are decoded
Character = tuple[int, int, str | None]  # where its bytes begin and end; None: a byte that is not a character


def _alphabet() -> dict[str, int]:
    """The letters that stand for bytes in byte-level tokenizers: printable bytes as they are, the rest from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTES = _alphabet()


def texts_of(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token, with its spaces; an id that the tokenizer does not have is shown as ⟨310⟩."""
    return Reader(tokenizer).texts(ids)


def units_of(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token without the space before it; a token of spaces alone keeps them."""
    return Reader(tokenizer).units(ids)


def said(tokenizer: Any, before: Sequence[int], ids: Sequence[int]) -> tuple[str, list[int]]:
    """What ids say after others, and where each ends in it; the bytes of one character end together.

    Decoded alone, the first of them may lose the space before it.
    """

    def decoded(some: Sequence[int]) -> str:
        return str(tokenizer.decode([*context, *some], clean_up_tokenization_spaces=False))

    for more in range(4):  # from where a character begins; a tokenizer of bytes would read all after it as broken
        context = list(before[-_CONTEXT - more :])
        ahead = decoded([])
        if "\ufffd" not in ahead:
            break
    texts = [decoded(ids[: n + 1]) for n in range(len(ids))]
    if not all(text.startswith(ahead) for text in texts):  # it begins inside of a character
        context, ahead = [], ""
        texts = [decoded(ids[: n + 1]) for n in range(len(ids))]
    ends = accumulate((len(text.rstrip("\ufffd")) - len(ahead) for text in texts), max, initial=0)
    return texts[-1][len(ahead) :], list(ends)[1:]


class Reader:
    """Reads tokens as text, for many texts: what a tokenizer says of itself and of each id is asked for once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._names: dict[int, str | None] = {}
        self._read = _way_to_read(tokenizer)

    def texts(self, ids: Sequence[int]) -> list[str]:
        """As `texts_of`."""
        numbers = [int(number) for number in ids]
        new = [number for number in dict.fromkeys(numbers) if number not in self._names]
        self._names.update(zip(new, self._tokenizer.convert_ids_to_tokens(new), strict=True))
        tokens = [f"⟨{number}⟩" if (token := self._names[number]) is None else token for number in numbers]
        read = self._read
        if read is None and any(token.startswith(_SPACE) for token in tokens):
            read = _from_pieces
        if read is None:
            return [token.removesuffix(_END) or token for token in tokens]
        texts: list[str] = []
        run: list[bytes] = []
        for number, token in zip(numbers, tokens, strict=True):
            if number in self._alone or self._names[number] is None:  # its name, not encoded text
                texts += [*_decoded(run), token]
                run = []
            else:
                run.append(read(token))
        return [*texts, *_decoded(run)]

    def units(self, ids: Sequence[int]) -> list[str]:
        """As `units_of`."""
        return [text.lstrip() or text for text in self.texts(ids)]

    @cached_property
    def _alone(self) -> set[int]:
        """Tokens that were added to a vocabulary, special ones among them: their names are not encoded."""
        added = getattr(self._tokenizer, "added_tokens_decoder", None) or {}
        return {*map(int, added), *getattr(self._tokenizer, "all_special_ids", ())}


def _way_to_read(tokenizer: Any) -> Callable[[str], bytes] | None:
    """How a token is turned into bytes, or None for tokens that are text already."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    state = decoder.__getstate__().decode() if decoder is not None else ""
    if "ByteLevel" in state or hasattr(tokenizer, "byte_decoder"):
        return _from_letters
    pieces = any(name in state for name in ("Metaspace", "ByteFallback", _SPACE)) or hasattr(tokenizer, "sp_model")
    return _from_pieces if pieces else None


def _from_letters(token: str) -> bytes:
    """A byte-level token; one with a letter of another kind is text already."""
    token = token.removesuffix(_END) or token
    if all(letter in _BYTES for letter in token):
        return bytes(_BYTES[letter] for letter in token)
    return token.encode()


def _from_pieces(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE, " ").encode()


def _decoded(run: Sequence[bytes]) -> list[str]:
    """The text of tokens that follow one another."""
    try:
        return [part.decode() for part in run]  # no character is split
    except UnicodeDecodeError:
        pass
    whole = b"".join(run)
    owner = [token for token, part in enumerate(run) for _ in part]  # of each byte
    texts = [""] * len(run)
    for start, end, letter in _characters(whole):
        of = list(dict.fromkeys(owner[start:end]))
        for number, token in enumerate(of, 1):
            mark = f"⟨{number}/{len(of)}⟩" if len(of) > 1 else ""
            texts[token] += f"⟨{whole[start]:02x}⟩" if letter is None else letter + mark
    return [_HEX.sub(" ", text) for text in texts]


_HEX = re.compile(r"(?<=⟨[0-9a-f]{2})⟩⟨(?=[0-9a-f]{2}⟩)")  # between bytes that make no character


def _characters(whole: bytes) -> list[Character]:
    """The characters of UTF-8 and the bytes that are not part of one."""
    characters: list[Character] = []
    start = 0
    while start < len(whole):
        lead = whole[start]
        size = 1 if lead < 0x80 else 2 if 0xC0 <= lead < 0xE0 else 3 if 0xE0 <= lead < 0xF0 else 4
        try:
            letter: str | None = whole[start : start + size].decode()
        except UnicodeDecodeError:
            letter, size = None, 1
        characters.append((start, start + size, letter))
        start += size
    return characters
