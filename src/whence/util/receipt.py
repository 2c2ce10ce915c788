"""The receipt as a dict with entries that wait: lines with one item per row are made when someone reads them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

Make = Callable[[list[int]], list[Any]]  # some rows → an item for each of them


class Later:
    """A list with one item per row that is not made yet; rows are picked and lists joined without making it."""

    def __init__(self, parts: Sequence[tuple[Make, Sequence[int]]]) -> None:
        self.parts = parts  # who makes the items, and of which of its rows they are

    @classmethod
    def of(cls, make: Make, rows: int) -> Later:
        return cls([(make, range(rows))])

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self.parts)

    def __repr__(self) -> str:
        return repr(self.made())

    def pick(self, rows: Sequence[int]) -> Later:
        if len(self.parts) == 1:
            make, own = self.parts[0]
            return Later([(make, [own[row] for row in rows])])
        items = [(make, [row]) for make, own in self.parts for row in own]
        return Later([items[row] for row in rows])

    def made(self) -> list[Any]:
        """The list itself; each maker is asked once, for all its rows."""
        asked: dict[int, tuple[Make, list[int], list[int]]] = {}
        place = 0
        for make, own in self.parts:
            _, places, rows = asked.setdefault(id(make), (make, [], []))
            places += range(place, place + len(own))
            rows += own
            place += len(own)
        made: list[Any] = [None] * place
        with _no_collection():
            for make, places, rows in asked.values():
                for place, item in zip(places, make(rows), strict=True):
                    made[place] = item
        return made


@contextmanager
def _no_collection() -> Iterator[None]:
    """Thousands of new dicts have Python look for garbage again and again, which takes a third of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def joined(parts: Sequence[Later | list[Any]]) -> Later | list[Any]:
    """One list of several, of which some may wait."""
    if len(parts) == 1:
        return parts[0]
    if not any(isinstance(part, Later) for part in parts):
        return [item for part in parts for item in part]  # type: ignore[union-attr]
    waiting = [part if isinstance(part, Later) else Later.of(_taken(part), len(part)) for part in parts]
    return Later([own for part in waiting for own in part.parts])


def _taken(items: list[Any]) -> Make:
    return lambda rows: [items[row] for row in rows]


class Receipt(dict[str, Any]):
    """A dict as everyone sees it; an entry that waits (`Later`) is made when it is first read, printed or written.

    `Receipt(a, b)` is {**a, **b} and leaves what waits waiting. Copies and pickles are plain dicts.
    """

    def __init__(self, *parts: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        super().__init__()
        for part in parts:
            for key, value in dict.items(part) if isinstance(part, dict) else dict(part).items():
                super().__setitem__(key, value)

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, Later):
            value = value.made()
            super().__setitem__(key, value)
        return value

    def __iter__(self) -> Iterator[str]:  # of our own, so that dict(self) and {**self} ask for each entry
        return super().__iter__()

    def _whole(self) -> Receipt:
        for key in self:
            self[key]
        return self

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401  (which is this)

    def items(self) -> Any:
        return dict.items(self._whole())

    def values(self) -> Any:
        return dict.values(self._whole())

    def pop(self, key: str, *default: Any) -> Any:
        self.get(key)
        return super().pop(key, *default)

    def popitem(self) -> tuple[str, Any]:
        return dict.popitem(self._whole())

    def setdefault(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else super().setdefault(key, default)

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def __eq__(self, other: object) -> bool:
        return dict(self) == (dict(other) if isinstance(other, Receipt) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def waiting(receipt: Mapping[str, Any], key: str) -> Any:
    """An entry as it is, made or not."""
    return dict.__getitem__(receipt, key) if isinstance(receipt, Receipt) else receipt[key]
