"""What a table rests on: all pairs of methods tested, rankings by other ways of removing, and the rows themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from whence.errors import InputError, ParameterError
from whence.evaluation import bootstrap, permutation
from whence.evaluation.bootstrap import Array
from whence.evaluation.columns import Column
from whence.evaluation.scoreboard import Scoreboard
from whence.util.checks import check_count
from whence.util.files import Place, csv_text, page_written, written
from whence.util.terminal import clean, say


@dataclass(frozen=True)
class Difference:
    """Two methods by one metric, over the rows that all methods have."""

    first: str
    second: str
    value: float  # mean of first − second
    low: float
    high: float
    effect: float  # the same, in standard deviations of the paired difference
    p: float  # corrected: at 5 % or less, any of the pairs of equals in at most 5 % of data sets

    @property
    def told_apart(self) -> bool:
        return self.p <= permutation.ERROR


@dataclass(frozen=True, eq=False)
class Differences(Sequence[Difference]):
    """All pairs of methods by one metric; by number, or by the names of two methods."""

    column: Column
    pairs: tuple[Difference, ...]
    rows: int  # distinct ones

    def __getitem__(self, which: Any) -> Any:
        if not isinstance(which, tuple):
            return self.pairs[which]
        found = next((d for d in self.pairs if {d.first, d.second} == set(which)), None)
        if found is None:
            raise ParameterError(f"There is no pair {which!r}.\n  Give two different methods of the table.")
        return found

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[Difference]:
        return iter(self.pairs)

    def __str__(self) -> str:
        from whence.views.tables import folded

        lines = [
            [clean(f"{d.first} − {d.second}"), f"{d.value:+.4g}", _reach(d), f"{d.effect:+.2f}", f"{d.p:.3f}",
             "told apart" if d.told_apart else ""]
            for d in self.pairs
        ]  # fmt: skip
        what = "|scores|" if self.column.better == "nearer to 0" else "scores"
        note = (
            f"{clean(self.column.name)}: differences of {what} over {self.rows} distinct rows; effect in standard "
            "deviations of the paired difference; p for all pairs together: in at most 5 % of data sets is any pair of "
            "equals told apart."
        )
        return folded(["pair", "difference", "95 % interval", "effect", "p", ""], lines) + "\n" + note

    def show(self) -> None:
        """Print them."""
        say(self)

    def to_csv(self, path: Place = None) -> str:
        """One line per pair; written to a file, if there is a path."""
        lines = [[d.first, d.second, d.value, d.low, d.high, d.effect, d.p] for d in self.pairs]
        return written(csv_text(["first", "second", "difference", "low", "high", "effect", "p"], lines), path)


def _reach(d: Difference) -> str:
    return "–" if math.isnan(d.low) else f"{d.low:+.4g} … {d.high:+.4g}"


def tested(board: Scoreboard, column: Column) -> Differences:
    """All pairs of the methods that have a score for most rows."""
    names, gains, weights = board.gains(column.name)
    if len(names) < 2 or len(gains) < 2:
        raise InputError(f"There are no two methods with two different rows by {column.name!r}.\n  Evaluate more.")
    seed = int(board.settings["seed"])
    scores = gains if column.better == "higher" else -gains
    p, effect = permutation.pairs(scores, weights, seed)
    first, second = np.triu_indices(len(names), 1)
    apart = scores[:, first] - scores[:, second]
    low, high = bootstrap.interval(apart, weights, seed)
    mean = weights @ apart / weights.sum()
    found = [
        Difference(names[a], names[b], *(float(of[i]) for of in (mean, low, high, effect, p)))
        for i, (a, b) in enumerate(zip(first, second, strict=True))
    ]
    return Differences(column, tuple(sorted(found, key=lambda d: d.p)), len(gains))


# ---- another way of removing ----


@dataclass(frozen=True)
class Agreement:
    """How alike several columns rank the methods: Kendall's τ, mean over pairs of columns; 1 is the same order."""

    metric: str
    tau: float
    low: float  # of its 95 % interval; NaN where the rows allow none
    high: float
    pairs: Mapping[tuple[str, str], float]

    def __str__(self) -> str:
        reach = "no interval" if math.isnan(self.low) else f"95 % interval {self.low:+.2f} … {self.high:+.2f}"
        each = [f"  {clean(a)} and {clean(b)}: {tau:+.2f}" for (a, b), tau in self.pairs.items()]
        return "\n".join([f"{clean(self.metric)}: Kendall's τ over operators {self.tau:+.2f} ({reach})", *each])


def ranked_alike(board: Scoreboard, metric: str) -> Agreement:
    """τ of the methods' mean scores, controls left out, with its interval."""
    columns = [column for column in board.columns if metric in (column.metric, column.name)]
    tables = {column.name: board.gains(column.name) for column in columns}
    names = [m for m in board.methods if m not in board.controls and all(m in t[0] for t in tables.values())]
    if len(columns) < 2 or len(names) < 2:
        raise ParameterError(
            f"{metric!r} has {len(columns)} columns and {len(names)} methods with scores.\n"
            '  Evaluate it with several operators, operator=["zero", "blur"], and at least two methods.'
        )
    samples = [board.sample(column, names) for column in columns]
    if len({len(values) for values, _, _ in samples}) > 1:
        raise InputError(f"The columns of {metric!r} do not have the same rows.\n  Leave out the rows that failed.")
    gains = [np.asarray(column.gain(values)) for column, (values, _, _) in zip(columns, samples, strict=True)]
    here, low, high = tau(gains, samples[0][1])
    pairs = {(a.name, b.name): float(here[i]) for i, (a, b) in enumerate(combinations(columns, 2))}
    return Agreement(metric, float(here.mean()), low, high, pairs)


def tau(
    gains: Sequence[Array], weights: Array, seed: int = 0, draws: int = permutation.DRAWS
) -> tuple[Array, float, float]:
    """Kendall's τ of each pair of columns, of scores (rows, methods), and the 95 % interval of its mean, or NaN.

    The sign of a difference counts as known where two methods are told apart, all pairs in all columns tested together;
    the interval reaches as far as the others could take τ. Resampled rankings would not do: they agree less than the
    true ones, and at close means no interval of theirs holds a τ of 1.
    """
    here = kendall(gains, weights[None])[0]
    if permutation.least_error(len(weights)) > permutation.ERROR:
        return here, math.nan, math.nan
    w, (a, b) = weights / weights.sum(), np.triu_indices(gains[0].shape[1], 1)
    differences = np.concatenate([values[:, a] - values[:, b] for values in gains], 1)
    tiny = max(permutation.rounding(values) for values in gains)
    known = permutation.different(differences, w, tiny, seed, draws) <= permutation.ERROR
    signs = np.where(known, np.sign(w @ differences), 0).reshape(len(gains), -1)  # (columns, pairs)
    products = np.stack([one * other for one, other in combinations(signs, 2)])
    low, high = (np.where(products == 0, side, products).mean() for side in (-1.0, 1.0))
    return here, float(low), float(high)


def kendall(gains: Sequence[Array], counts: Array) -> Array:
    """Kendall's τ of each pair of columns in each draw, (draws, pairs of columns)."""
    signs = []
    for values in gains:
        mean = counts @ values / counts.sum(1, keepdims=True)
        a, b = np.triu_indices(values.shape[1], 1)
        signs.append(np.sign(mean[:, a] - mean[:, b]))
    return np.stack([(a * b).mean(1) for a, b in combinations(signs, 2)], 1)


# ---- the rows of a cell ----


@dataclass(frozen=True, eq=False)
class Rows(Mapping[int, float]):
    """The rows of one cell, and their values."""

    board: Scoreboard
    method: str
    column: Column
    values_by_row: Mapping[int, float]

    def __getitem__(self, row: int) -> float:
        return self.values_by_row[row]

    def __iter__(self) -> Iterator[int]:
        return iter(self.values_by_row)

    def __len__(self) -> int:
        return len(self.values_by_row)

    def worst(self, k: int = 5) -> Shown:
        """The k rows with the worst scores, explained again."""
        return self._shown(k, worst=True)

    def best(self, k: int = 5) -> Shown:
        """The k rows with the best scores, explained again."""
        return self._shown(k, worst=False)

    def _shown(self, k: int, worst: bool) -> Shown:
        check_count("k", k)
        if self.board.again is None:
            raise InputError("This table does not hold its rows.\n  Call evaluate() with data that is not a stream.")
        order = sorted(self, key=lambda row: float(self.column.gain(self[row])), reverse=not worst)[:k]
        title = f"{self.column.name} of {self.method}"
        return Shown(title, order, [self[row] for row in order], self.board.again(self.method, order))


@dataclass(frozen=True, eq=False)
class Shown:
    """Some rows of a cell with their values and attributions."""

    title: str
    rows: Sequence[int]
    values: Sequence[float]
    attributions: Sequence[Any]  # None where a row could not be explained again

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        from whence.views.terminal import describe

        return "\n\n".join(
            f"row {row}: {clean(self.title)} {value:.4g}\n{'(cannot be explained again)' if a is None else describe(a)}"
            for row, value, a in zip(self.rows, self.values, self.attributions, strict=True)
        )

    def show(self) -> None:
        """Print the rows."""
        say(self)

    def to_html(self, path: Place = None, *, title: str = "Whence: rows of an evaluation") -> str:
        """A self-contained page; written to a file, if there is a path."""
        from whence.views.html import page

        return page_written(page(title, [self._repr_html_()]), path)

    def _repr_html_(self) -> str:
        from whence.views.components import text

        shown = zip(self.rows, self.values, self.attributions, strict=True)
        return "".join(
            f"<section><h3>row {row}: {text(self.title)} {value:.4g}</h3>{a._repr_html_() if a is not None else ''}"
            "</section>"
            for row, value, a in shown
        )
