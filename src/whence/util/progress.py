"""A progress bar on stderr, shown on a terminal when the work takes longer than two seconds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
_COLUMNS = 80  # of a terminal that does not tell its width, on which tqdm would print nothing


def steps(items: Sequence[T], progress: bool | None, title: str) -> Iterator[T]:
    """The items, counted on a bar. `progress=None`: on a terminal and after two seconds; True: always; False: never."""
    if progress is False or len(items) < 2:
        yield from items
        return
    from tqdm import tqdm

    yield from tqdm(items, **_how(progress, title))


@contextmanager
def bar(
    total: int | None, progress: bool | None, title: str, *, at_once: bool = False, **more: Any
) -> Iterator[Callable[..., object]]:
    """A bar of `total` steps, None if nobody knows, for work in any order; call what it yields to count steps.

    With `at_once` it does not wait for two seconds, nor for the first step.
    """
    if progress is False or (total is not None and total < 2):
        yield lambda count=1: None
        return
    from tqdm import tqdm

    how = _how(progress, title)
    with tqdm(total=total, **how | ({"delay": 0} if at_once else {}), **more) as shown:
        yield shown.update


def _how(progress: bool | None, title: str) -> dict[str, Any]:
    disable = None if progress is None else False  # None: where there is no terminal
    return {"desc": title, "disable": disable, "delay": 0 if progress else 2, "leave": False, "ncols": _width()}


def _width() -> int | None:
    """None is the terminal's own width, which tqdm asks for."""
    try:
        return None if os.get_terminal_size(sys.stderr.fileno()).columns > 0 else _COLUMNS
    except (OSError, ValueError, AttributeError):  # no terminal, or none with a number
        return None
