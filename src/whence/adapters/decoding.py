"""Tokens of byte-level and SentencePiece tokenizers as readable text.

A character whose bytes are split over tokens is shown in each of them with its part, 国⟨1/3⟩; bytes that are not a
character are shown in hexadecimal, ⟨e5 9b⟩. WordPiece's tokens keep their ##.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # how SentencePiece writes a byte of a character that it does not know
_SPACE, _END = "▁", "</w>"
Character = tuple[int, int, str | None]  # where its bytes begin and end; None: a byte that is not a character


def _alphabet() -> dict[str, int]:
    """The letters that stand for bytes in byte-level tokenizers: printable bytes as they are, the rest from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTES = _alphabet()


def texts_of(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token, with its spaces; an id that the tokenizer does not have is shown as ⟨310⟩."""
    known = list(tokenizer.convert_ids_to_tokens(list(ids)))
    tokens = [f"⟨{int(number)}⟩" if token is None else token for number, token in zip(ids, known, strict=True)]
    read = _reader(tokenizer, tokens)
    if read is None:
        return [token.removesuffix(_END) or token for token in tokens]
    alone = _alone(tokenizer) | {int(number) for number, token in zip(ids, known, strict=True) if token is None}
    texts: list[str] = []
    run: list[bytes] = []
    for number, token in zip(ids, tokens, strict=True):
        if int(number) in alone:  # its name, not encoded text
            texts += [*_decoded(run), token]
            run = []
        else:
            run.append(read(token))
    return [*texts, *_decoded(run)]


def units_of(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token without the space before it; a token of spaces alone keeps them."""
    return [text.lstrip() or text for text in texts_of(tokenizer, ids)]


def _reader(tokenizer: Any, tokens: Sequence[str]) -> Any:
    """How a token is turned into bytes, or None for tokens that are text already."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    state = decoder.__getstate__().decode() if decoder is not None else ""
    if "ByteLevel" in state or hasattr(tokenizer, "byte_decoder"):
        return _from_letters
    pieces = any(name in state for name in ("Metaspace", "ByteFallback", _SPACE)) or hasattr(tokenizer, "sp_model")
    return _from_pieces if pieces or any(token.startswith(_SPACE) for token in tokens) else None


def _alone(tokenizer: Any) -> set[int]:
    """Tokens that were added to a vocabulary, special ones among them: their names are not encoded."""
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    return {*map(int, added), *getattr(tokenizer, "all_special_ids", ())}


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
