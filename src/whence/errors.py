"""One base error and its few named children; each message states the fact, the place and the way out."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


def _safe(text: str) -> str:
    """Text that cannot steer a terminal. The import is late because `util` stands above this file."""
    from whence.util.terminal import safe

    return safe(text)


class WhenceError(Exception):
    """Base of every error that Whence raises on purpose."""

    def __str__(self) -> str:
        return _safe(super().__str__())  # a message may quote a file, a model or a tokenizer


class InputError(WhenceError):
    """The inputs, `wrt` or `at` cannot be explained as they are."""


class TargetError(WhenceError):
    """The target does not name one score per row of this model's output."""


class BaselineError(WhenceError):
    """The baseline does not fit the input."""


class MethodError(WhenceError):
    """There is no such method, or it cannot be used in this way."""


class ParameterError(WhenceError):
    """A parameter is unknown, or its value is not allowed."""


class ModelError(WhenceError):
    """The model's output cannot be explained."""


class IndependentError(WhenceError):
    """The explained score does not depend on the explained input."""


class NoAttention(WhenceError):
    """The method reads attention, but the model has none."""


class NoRule(WhenceError):
    """The method has no rule for an op of the model, and `unruled="error"` was given."""


class DivergedError(WhenceError):
    """The model took another path for the baseline than for the input."""


class RuleError(WhenceError):
    """A rule is not known, or gave something that cannot be propagated."""


class FileError(WhenceError):
    """A file or folder is missing, or cannot be read or written as asked."""


class WhenceWarning(UserWarning):
    """Something that the user should know before trusting an answer."""


@dataclass
class Message:
    """A warning about an explanation: its text, the rows it is about (None: all), and the worst numbers it names."""

    text: str  # with {rows} and the names of `worst` in braces
    rows: list[int] | None = None
    worst: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        text = self.text
        for name, number in self.worst.items():
            text = text.replace("{" + name + "}", str(number) if isinstance(number, int) else _short(number))
        return text if self.rows is None else text.replace("{rows}", _numbered(self.rows))


def _short(number: float) -> str:
    """Two digits, without an exponent for numbers of everyday size; what is less than all is not rounded to it."""
    if 99 < number < 100:
        return f"{min(number, 99.9):.1f}"
    return f"{number:.0f}" if 10 <= abs(number) < 1e4 else f"{number:.2g}"


_waiting: ContextVar[list[Message] | None] = ContextVar("waiting", default=None)


def warn(text: str, rows: Iterable[int] | None = None, **worst: float) -> None:
    """Warn the user; everything on the way to an answer warns through this function.

    Inside of `gathered()` a warning waits until the answer is complete, and is written into its receipt. What differs
    from part to part of a call goes into `rows` (the user's numbers) and `worst`, so that the user is warned once:
    warnings of one text are merged, with all their rows in place of {rows} and the largest number in place of its name.
    """
    new, waiting = Message(text, None if rows is None else sorted(set(rows)), dict(worst)), _waiting.get()
    if waiting is None:
        emit(new)
        return
    for old in waiting:
        if old.text == text and (old.rows is None) == (new.rows is None):
            old.rows = None if old.rows is None else sorted({*old.rows, *(new.rows or ())})
            old.worst = {name: max(number, old.worst.get(name, number)) for name, number in worst.items()}
            return
    waiting.append(new)


@contextmanager
def gathered() -> Iterator[list[Message]]:
    """Warnings inside of the block wait in this list."""
    messages: list[Message] = []
    token = _waiting.set(messages)
    try:
        yield messages
    finally:
        _waiting.reset(token)


def emit(message: Message) -> None:
    """A WhenceWarning that points at the first line outside this package: the user's own call."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "whence":
        level, frame = level + 1, frame.f_back
    warnings.warn(_safe(str(message)), WhenceWarning, stacklevel=level)


def _numbered(rows: list[int], most: int = 10) -> str:
    return f"rows {rows}" if len(rows) <= most else f"{len(rows)} rows ({', '.join(map(str, rows[:most]))}, …)"


def nearest(word: str, known: Iterable[str]) -> str:
    """A sentence that suggests the nearest known word, if there is one."""
    near = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return f"Did you mean {near[0]!r}?" if near else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence that suggests the nearest known word, or lists all of them."""
    known = sorted(known)
    return nearest(word, known) or f"Known: {', '.join(known)}."
