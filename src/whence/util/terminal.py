"""Output on a terminal, without control characters, whatever file or model the text came from."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable
from typing import Any


class Painted(str):
    """Text with colours of our own, whose other parts are clean already."""


def clean(text: str) -> str:
    """One line without control characters, which are spelled out."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if unicodedata.category(c)[0] != "C" else f"\\x{ord(c):02x}" for c in text)


def safe(text: str) -> str:
    """Lines without control characters; painted text stays as it is."""
    return text if isinstance(text, Painted) else "\n".join(map(clean, text.split("\n")))


def joined(lines: Iterable[str]) -> Painted:
    """Lines made safe, each by itself, so that painted ones keep their colours."""
    return Painted("\n".join(map(safe, lines)))


def say(text: Any, stream: Any = None, end: str = "\n") -> None:
    """Print text: the only way in which the package writes to a terminal."""
    print(safe(text if isinstance(text, str) else str(text)), file=stream, end=end)


def say_json(text: str, stream: Any = None) -> None:
    """Print JSON as it is read back: what a terminal might obey is written as \\u escapes."""
    say(
        Painted("".join(c if c == "\n" or unicodedata.category(c)[0] != "C" else json.dumps(c)[1:-1] for c in text)),
        stream,
    )
