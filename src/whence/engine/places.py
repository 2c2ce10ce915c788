"""Places in a forward pass as users write them: a module's path, which of its calls ("path@2"), its input or output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Side = Literal["input", "output"]
INPUT = "input"  # the word after @ for what enters a module


@dataclass(frozen=True)
class Place:
    """A module by its path, one of its calls, and whether what enters it is meant or what leaves it."""

    path: str
    call: int | None = None  # from 1; None if it was not said
    side: Side = "output"

    def __str__(self) -> str:
        return "@".join([self.path, *_marks(self.call, self.side)])

    def calls(self, count: int, word: str = "") -> str:
        """How the first and the last of so many calls are written, each after a word."""
        first, last = (f'{word}"{Place(self.path, call, self.side)}"' for call in (1, count))
        return f"{first} to {last}"


def _marks(call: int | None, side: Side) -> list[str]:
    return ([] if call is None else [str(call)]) + ([INPUT] if side == "input" else [])


def is_mark(text: str) -> bool:
    """Whether the text after a path's @ is one: the number of a call, "input", or the two."""
    call, _, side = text.partition("@")
    if call == INPUT and not side:
        return True
    return call.isascii() and call.isdigit() and int(call) > 0 and (side == INPUT or text == call)


def place(written: str) -> Place:
    """The place that is written so; the text after @ is checked where users give it."""
    path, *marks = written.split("@")
    call = next((int(mark) for mark in marks if mark != INPUT), None)
    return Place(path, call, "input" if INPUT in marks else "output")
