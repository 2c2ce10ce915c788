"""Statistics of a stream: means with intervals, a bounded vocabulary, counts, a histogram, the most extreme rows.

None of them grows with the number of rows.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.evaluation.bootstrap import student_quantile

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Mean:
    """A mean over rows with Student's 95 % interval, which is NaN for fewer than two rows."""

    rows: int
    mean: float
    low: float
    high: float

    @property
    def near(self) -> float:
        """The end of the interval that is nearer to 0, or 0 where the interval holds it."""
        return self.low if self.low > 0 else self.high if self.high < 0 else 0.0


def interval(rows: int, mean: float, squares: float) -> Mean:
    """From a mean and the sum of squared distances to it."""
    if rows < 2:
        return Mean(rows, mean if rows else math.nan, math.nan, math.nan)
    reach = student_quantile(rows - 1) * math.sqrt(max(squares, 0.0) / (rows - 1) / rows)
    return Mean(rows, mean, mean - reach, mean + reach)


class Moments:
    """Count, mean and sum of squared distances of many quantities, merged batch by batch (Chan et al. 1979)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.rows = np.zeros(shape, dtype=np.int64)
        self.mean, self.squares = np.zeros(shape), np.zeros(shape)

    def merge(self, rows: Array, mean: Array, squares: Array, where: Any = ...) -> None:
        """Merge those of further rows; `where` says to which of the quantities they belong, each at most once."""
        before, old = self.rows[where], self.mean[where]
        whole = np.maximum(before + rows, 1)
        step = np.where(rows > 0, mean - old, 0.0)
        self.mean[where] = old + step * rows / whole
        self.squares[where] += np.where(rows > 0, squares, 0.0) + step**2 * before * rows / whole
        self.rows[where] += rows

    def add(self, values: Array) -> None:
        """Further rows along the last dimension; NaN is no value."""
        there = np.isfinite(values)
        rows = there.sum(-1)
        mean = np.where(there, values, 0.0).sum(-1) / np.maximum(rows, 1)
        self.merge(rows, mean, (np.where(there, values - mean[..., None], 0.0) ** 2).sum(-1))

    def grown(self, size: int) -> None:
        """Make room for more quantities in the first dimension."""
        for name in ("rows", "mean", "squares"):
            old = getattr(self, name)
            new = np.zeros((size, *old.shape[1:]), dtype=old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def at(self, place: Any) -> Mean:
        return interval(int(self.rows[place]), float(self.mean[place]), float(self.squares[place]))


class Vocabulary:
    """For each class and unit, what the unit has in a row, by method: the sum over its places in the row.

    The first `bound` pairs of a class and a unit are kept, and what is said of them is exact; later ones are counted.
    """

    def __init__(self, methods: int, bound: int) -> None:
        self.bound, self.left_out = bound, 0
        self.index: dict[str, dict[str, int]] = {}
        self.size = 0
        self.moments = Moments((min(bound, 1024), methods))
        self.places = np.zeros(len(self.moments.rows), dtype=np.int64)  # how often each occurs

    def add(self, classes: Sequence[str], owner: Array, names: Iterable[str], values: Array) -> None:
        """The units of some rows: each row's class, and each unit's row, name and values (methods, units)."""
        ids = np.fromiter((self._id(classes[row], name) for row, name in zip(owner, names, strict=True)), np.int64)
        self._make_room()
        self.left_out += int((ids < 0).sum())
        owner, values, ids = owner[ids >= 0], values[:, ids >= 0], ids[ids >= 0]
        if not len(ids):
            return
        np.add.at(self.places, ids, 1)
        pairs, inverse = np.unique(owner * self.size + ids, return_inverse=True)  # one for each row and unit in it
        sums = np.stack([np.bincount(inverse, own, len(pairs)) for own in values])
        units, inverse = np.unique(pairs % self.size, return_inverse=True)
        there = np.isfinite(sums)
        clean = np.where(there, sums, 0.0)
        rows = np.stack([np.bincount(inverse, own, len(units)) for own in there.astype(float)])
        mean = np.stack([np.bincount(inverse, own, len(units)) for own in clean]) / np.maximum(rows, 1)
        apart = np.where(there, clean - mean[:, inverse], 0.0) ** 2
        squares = np.stack([np.bincount(inverse, own, len(units)) for own in apart])
        self.moments.merge(rows.T.astype(np.int64), mean.T, squares.T, units)

    def _id(self, group: str, name: str) -> int:
        own = self.index.get(group)
        if own is None:
            if self.size >= self.bound:
                return -1
            own = self.index[group] = {}
        found = own.get(name, -1)
        if found < 0 and self.size < self.bound:
            found = own[name] = self.size
            self.size += 1
        return found

    def _make_room(self) -> None:
        if self.size > len(self.places):
            room = min(self.bound, 2 * self.size)
            self.moments.grown(room)
            more = np.zeros(room - len(self.places), dtype=np.int64)
            self.places = np.concatenate([self.places, more])


class Counts:
    """How often each of a bounded number of names came."""

    def __init__(self, bound: int = 1000) -> None:
        self.bound, self.found, self.others = bound, dict[Any, int](), 0

    def add(self, names: Iterable[Any]) -> None:
        for name in names:
            if name in self.found or len(self.found) < self.bound:
                self.found[name] = self.found.get(name, 0) + 1
            else:
                self.others += 1


class Histogram:
    """Counts between fixed edges, and of what lies below and above them."""

    def __init__(self, edges: Array) -> None:
        self.edges = edges
        self.counts = np.zeros(len(edges) + 1, dtype=np.int64)  # the first is below, the last above all edges

    def add(self, values: Array) -> None:
        values = values[np.isfinite(values)]
        self.counts += np.bincount(np.searchsorted(self.edges, values, "right"), minlength=len(self.counts))

    def quantile(self, part: float) -> float:
        """Up to which edge this part of the values goes."""
        total = self.counts.sum()
        if not total:
            return math.nan
        place = int(np.searchsorted(np.cumsum(self.counts), part * total))
        return float(self.edges[min(place, len(self.edges) - 1)])


class Extremes:
    """The rows with the largest numbers; the earlier row where two are equal."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.heap: list[tuple[float, int, Any]] = []

    def add(self, numbers: Array, rows: Sequence[dict[str, Any]]) -> None:
        """Numbers of some rows; NaN is none."""
        least = self.heap[0][0] if len(self.heap) == self.most else -math.inf
        for place in np.flatnonzero(numbers >= least).tolist():
            item = (float(numbers[place]), -int(rows[place]["row"]), rows[place])
            if len(self.heap) < self.most:
                heapq.heappush(self.heap, item)
            elif item[:2] > self.heap[0][:2]:
                heapq.heapreplace(self.heap, item)

    def found(self) -> list[tuple[float, dict[str, Any]]]:
        return [(number, row) for number, _, row in sorted(self.heap, key=lambda item: item[:2], reverse=True)]
