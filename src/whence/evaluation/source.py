"""Where rows come from: all of them at once, or a stream that is read chunk by chunk and not kept."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from whence.errors import InputError, WhenceError
from whence.evaluation.examples import Example, Failure, bytes_of, content, failed, masks_by_255, read_example


@dataclass(eq=False)
class Source:
    """Rows as examples, in chunks; what has to be known of all of them is counted on the way.

    `first` are the rows that can be looked at before the work begins: all of them, or a stream's first chunk.
    """

    model: Any
    rows: Iterable[dict[str, Any]]
    wrt: Any
    size: int  # of a chunk
    stream: bool
    count: int = 0  # rows that were read, the unreadable ones too
    failures: list[Failure] = field(default_factory=list)  # rows that could not be read
    copies: dict[int, int] = field(default_factory=dict)  # rows whose inputs equal an earlier one's, and which
    first: list[Example] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._seen: Counter[int] = Counter()
        self._places: dict[bytes, int] = {}
        self._error: WhenceError | None = None
        self._read = self._examples()
        self.first = list(islice(self._read, self.size) if self.stream else self._read)
        if not self.first:
            raise self._error or InputError("The data set is empty.\n  Give at least one row.")
        self._by_255 = masks_by_255(self.first)
        self.first = self._masked(self.first)

    @property
    def chunks(self) -> int | None:
        """How many there are; None of a stream."""
        return None if self.stream else -(-len(self.first) // self.size)

    def __iter__(self) -> Iterator[list[Example]]:
        """The chunks; a stream's can be had once."""
        if not self.stream:
            yield from (self.first[i : i + self.size] for i in range(0, len(self.first), self.size))
            return
        some, self.first = self.first, []
        while some:
            yield some
            some = self._masked(list(islice(self._read, self.size)))

    def _examples(self) -> Iterator[Example]:
        """Those which can be read, each with a seed by what it holds, so that place and padding do not matter."""
        for place, row in enumerate(self.rows):
            self.count += 1
            found = read_example(self.model, row, place, self.wrt)
            if not isinstance(found, Example):
                self._error = self._error or found
                self.failures.append(failed(found, place))
                continue
            other = self._places.setdefault(content(found), place)
            if other != place:
                self.copies[place] = other
            yield seeded(found, self._seen)

    def _masked(self, examples: Sequence[Example]) -> list[Example]:
        """Masks as 0 and 1 where 255 shows the object; of a stream, the first chunk tells."""
        if not self._by_255:
            return list(examples)
        for example in examples:
            if example.mask is not None and not set(example.mask.unique().tolist()) <= {0, 255}:
                raise InputError(
                    f"The mask of row {example.place} holds other values than 0 and 255, but those of the first "
                    f"{self.size} rows do not.\n  Give masks of 0 and 1, or the rows as a list."
                )
        return [example if example.mask is None else replace(example, mask=example.mask > 0) for example in examples]


def seeded(example: Example, seen: Counter[int]) -> Example:
    """A row with a seed by what it holds; equal rows are counted."""
    key = zlib.crc32(bytes_of(example.x[:, example.real] if example.ids else example.x))
    found = replace(example, seed=key + 7919 * seen[key])
    seen[key] += 1
    return found
