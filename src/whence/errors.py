"""One base error and its few named children; each message states the fact, the place and the way out."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable


class WhenceError(Exception):
    """Base of every error that Whence raises on purpose."""


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
    """The method reads attention, and the model has none."""


class NoRule(WhenceError):
    """An op was met for which the method has no rule, and `unruled="error"` was asked for."""


class DivergedError(WhenceError):
    """The model took another path for the baseline than for the input."""


class RuleError(WhenceError):
    """A rule is not known, or gave something that cannot be propagated."""


class FileError(WhenceError):
    """A file is not a saved attribution."""


class WhenceWarning(UserWarning):
    """Something that the user should know about an answer."""


def warn(message: str) -> None:
    """A WhenceWarning that points at the first line outside this package: the user's own call."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "whence":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, WhenceWarning, stacklevel=level)


def nearest(word: str, known: Iterable[str]) -> str:
    """A sentence that offers the nearest known word, if one is near."""
    near = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return f"Did you mean {near[0]!r}?" if near else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The same, or a list of all of them."""
    known = sorted(known)
    return nearest(word, known) or f"Known: {', '.join(known)}."
