"""Tokens as text: what a byte-level or a SentencePiece tokenizer writes in its own signs, as people read it.

A character whose bytes are split over tokens is shown in each of them with its part, 国⟨1/3⟩; bytes that make no
character are shown as hexadecimal numbers, ⟨e5 9b⟩. WordPiece's tokens keep their ##, which everybody knows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # how SentencePiece writes a byte of a character that it does not know
_SPACE, _END = "▁", "</w>"
Character = tuple[int, int, str | None]  # where its bytes begin and end; None: a byte that makes no character


def _alphabet() -> dict[str, int]:
    """The letters by which byte-level tokenizers write bytes: printable ones as they are, the rest from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTES = _alphabet()


def texts_of(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Each token as the text that it stands for, with its spaces; an id that the tokenizer does not have is ⟨310⟩."""
    known = list(tokenizer.convert_ids_to_tokens(list(ids)))
    tokens = [f"⟨{int(number)}⟩" if token is None else token for number, token in zip(ids, known, strict=True)]
    read = _reader(tokenizer, tokens)
    if read is None:
        return [token.removesuffix(_END) or token for token in tokens]
    alone = _alone(tokenizer) | {int(number) for number, token in zip(ids, known, strict=True) if token is None}
    found: list[str] = []
    run: list[bytes] = []
    for number, token in zip(ids, tokens, strict=True):
        if int(number) in alone:  # its own name, not text of the model's
            found += [*_decoded(run), token]
            run = []
        else:
            run.append(read(token))
    return [*found, *_decoded(run)]


def units_of(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Each token as text, without the space before it; a token that is nothing but spaces is them."""
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
    found = [""] * len(run)
    for start, end, letter in _characters(whole):
        of = list(dict.fromkeys(owner[start:end]))
        for number, token in enumerate(of, 1):
            mark = f"⟨{number}/{len(of)}⟩" if len(of) > 1 else ""
            found[token] += f"⟨{whole[start]:02x}⟩" if letter is None else letter + mark
    return [_HEX.sub(" ", text) for text in found]


_HEX = re.compile(r"(?<=⟨[0-9a-f]{2})⟩⟨(?=[0-9a-f]{2}⟩)")  # between bytes that make no character


def _characters(whole: bytes) -> list[Character]:
    """The characters of UTF-8, and the bytes that are none."""
    found: list[Character] = []
    place = 0
    while place < len(whole):
        lead = whole[place]
        size = 1 if lead < 0x80 else 2 if 0xC0 <= lead < 0xE0 else 3 if 0xE0 <= lead < 0xF0 else 4
        try:
            letter: str | None = whole[place : place + size].decode()
        except UnicodeDecodeError:
            letter, size = None, 1
        found.append((place, place + size, letter))
        place += size
    return found
