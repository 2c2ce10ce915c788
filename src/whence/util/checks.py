"""Checks of parameters, with one wording for a value that is not allowed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from numbers import Integral
from typing import Any

from whence.errors import ParameterError, WhenceError


def not_allowed(
    name: str, value: Any, give: str, owner: str = "", error: type[WhenceError] = ParameterError
) -> WhenceError:
    """The error for a parameter's value; `give` says what to give instead, `owner` whose parameter it is."""
    return error(f"{f'{owner}: ' if owner else ''}{name}={value!r} is not allowed.\n  Give {give}.")


def check_choice(name: str, value: Any, allowed: Iterable[str], owner: str = "") -> None:
    """Raise unless the value is one of a few names."""
    names = list(allowed)
    if value not in names:
        raise not_allowed(name, value, f"one of {', '.join(map(repr, names))}", owner)


def check_installed(asking: str, extra: str, **packages: str) -> None:
    """Raise unless each package can be found: the name by which it is imported, and the one that people know."""
    for package, known in packages.items():
        if importlib.util.find_spec(package) is None:
            raise ParameterError(f"{asking} needs {known}, which is not installed.\n  pip install 'whence[{extra}]'")


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_count(name: str, value: Any, low: int = 1, owner: str = "") -> None:
    """Raise unless the value is a whole number from `low` on."""
    if not is_whole(value) or value < low:
        raise not_allowed(name, value, f"a whole number, at least {low}", owner)
