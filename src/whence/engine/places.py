"""Places in a forward pass as users write them: a module's path, and which of its calls is meant ("path@2")."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A module by its path, and one of its calls."""

    path: str
    call: int | None = None  # from 1; None if it was not said

    def __str__(self) -> str:
        return self.path if self.call is None else f"{self.path}@{self.call}"


def place(written: str) -> Place:
    """The place that is written so; the text after @ is checked where users give it."""
    path, _, call = written.partition("@")
    return Place(path, int(call) if call else None)
