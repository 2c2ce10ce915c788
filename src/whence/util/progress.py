"""A progress bar on stderr, shown on a terminal when the work takes longer than two seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def steps(items: Sequence[T], progress: bool | None, title: str) -> Iterator[T]:
    """The items, counted on a bar. `progress=None`: on a terminal and after two seconds; True: always; False: never."""
    if progress is False or len(items) < 2:
        yield from items
        return
    from tqdm import tqdm

    disable = None if progress is None else False
    yield from tqdm(items, desc=title, disable=disable, delay=0 if progress else 2, leave=False)


@contextmanager
def bar(total: int | None, progress: bool | None, title: str) -> Iterator[Callable[..., object]]:
    """A bar of `total` steps, None if nobody knows, for work in any order; call what it yields to count steps."""
    if progress is False or (total is not None and total < 2):
        yield lambda count=1: None
        return
    from tqdm import tqdm

    disable = None if progress is None else False
    with tqdm(total=total, desc=title, disable=disable, delay=0 if progress else 2, leave=False) as shown:
        yield shown.update
