"""Keys of explained values: an input's name, or "name#2" for the second embedding that its ids enter."""

from __future__ import annotations

from collections.abc import Iterable

_MARK = "#"

SOURCE, WRITTEN = "input_ids", "decoder_input_ids"  # what an encoder reads, and what a decoder has written


def new_key(name: str, keys: Iterable[str]) -> str:
    """The key of an input's next value, beside the keys that there are."""
    count = sum(input_of(key) == name for key in keys)
    return f"{name}{_MARK}{count + 1}" if count else name


def input_of(key: str) -> str:
    """The name of the input behind a key."""
    return key.partition(_MARK)[0]


def inputs_of(keys: Iterable[str]) -> list[str]:
    """The names of the inputs behind some keys, each once, in order."""
    return list(dict.fromkeys(map(input_of, keys)))


def any_repeated(keys: Iterable[str]) -> bool:
    """Whether the ids of some input enter more than one embedding."""
    return any(_MARK in key for key in keys)
