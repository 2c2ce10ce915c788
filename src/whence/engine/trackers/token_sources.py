"""Tokens that were born together, and the numbers that each of them has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Source:
    """Tokens that were born together: `shape` of them for each row, numbered row by row from `first` on."""

    name: str
    first: int
    shape: tuple[int, ...]
    rows: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def holds(self, numbers: Tensor) -> Tensor:
        return (numbers >= self.first) & (numbers < self.first + self.rows * self.size)


@dataclass(eq=False)
class Sources:
    """All tokens of a pass: those of its inputs, and those that convolutions and merges begin."""

    rows: int
    _sources: list[Source] = field(default_factory=list)
    _next: int = 1
    _made: dict[Any, Source] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Source]:
        return iter(self._sources)

    def begin(self, name: str, shape: tuple[int, ...], made: Any) -> Source:
        """Tokens of this name and shape, `made` in this way: those that there are, or new ones."""
        source = self._made.get((made, shape))
        if source is None:
            source = self._made[made, shape] = Source(name, self._next, shape, self.rows)
            self._sources.append(source)
            self._next += self.rows * source.size
        return source

    def numbers(self, source: Source, device: torch.device) -> Tensor:
        """(rows, *shape): the number of each token of a source."""
        count = source.rows * source.size
        return torch.arange(source.first, source.first + count, device=device).view(source.rows, *source.shape)

    def of(self, number: int) -> Source | None:
        """The source of the token with this number."""
        return next((s for s in self._sources if s.first <= number < s.first + s.rows * s.size), None)

    def names(self, numbers: Tensor) -> frozenset[str]:
        """The inputs that some of these tokens belong to."""
        return frozenset(s.name for s in self._sources if bool(s.holds(numbers).any()))

    def one(self, name: str, numbers: Tensor) -> Source | None:
        """The one kind of an input's tokens that is met here, besides one that stands for them all."""
        sources = [s for s in self._sources if s.name == name and bool(s.holds(numbers).any())]
        several = [s for s in sources if s.size > 1]
        return several[0] if len(several) == 1 else sources[0] if len(sources) == 1 else None

    def every(self, parts: Sequence[Tensor]) -> Tensor | None:
        """All tokens (rows, n) of the one source that these are of; tokens of no input are not counted."""
        sources = [s for s in self._sources if any(bool(s.holds(n).any()) for n in parts)]
        if len(sources) != 1:
            return None
        return self.numbers(sources[0], parts[0].device).view(self.rows, -1)

    def by_row(self, lines: Tensor) -> Tensor | None:
        """(rows, n) of (…, n), where every line of a row has the same tokens."""
        lines = lines.reshape(-1, lines.shape[-1])
        highest = lines.amax(1)
        row = torch.full_like(highest, -1)
        for source in self._sources:
            row = torch.where(source.holds(highest), (highest - source.first) // max(1, source.size), row)
        if bool((row < 0).any()):
            return None
        first = torch.stack([(row == r).long().argmax() for r in range(self.rows)])
        tokens = lines[first]
        every = bool((row[first] == torch.arange(self.rows, device=row.device)).all())
        return tokens if every and torch.equal(tokens[row], lines) else None
