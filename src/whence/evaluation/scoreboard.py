"""Scoreboard: what an evaluation found, row by row, and the table that is made of it."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.errors import ParameterError, did_you_mean
from whence.evaluation import bootstrap, permutation
from whence.evaluation.bootstrap import Array
from whence.evaluation.columns import Column
from whence.evaluation.examples import Failure
from whence.evaluation.requests import Result
from whence.methods import methods as known_methods
from whence.util.files import Place, csv_text, page_written, written
from whence.util.terminal import say

if TYPE_CHECKING:
    from whence.evaluation.evidence import Agreement, Differences, Rows

CONTROLS = ("random", "edges")  # the methods that know nothing of the model


@dataclass(frozen=True)
class Score:
    """One cell: the score over all rows, its 95 % interval (NaN: the rows allow none), and how many rows counted."""

    value: float
    low: float
    high: float
    rows: int
    parts: Mapping[str, float]  # means over rows of what else was measured
    median: float = float("nan")  # of the rows' values


@dataclass(frozen=True, eq=False)
class Scoreboard:
    """Methods by metrics."""

    methods: tuple[str, ...]
    columns: tuple[Column, ...]
    results: Mapping[tuple[str, str], Mapping[int, Result]]  # by method and metric, by row
    cost: Mapping[str, Mapping[str, float]]  # by method: seconds, rows, copies asked, passes
    failures: tuple[Failure, ...]
    settings: Mapping[str, Any]
    seconds: float  # spent on metrics
    copies: Mapping[int, int] = field(default_factory=dict)  # rows that equal an earlier one, and which
    again: Callable[[str, list[int]], list[Any]] | None = None  # explains rows again, to show them

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def controls(self) -> tuple[str, ...]:
        """The lines that are no methods."""
        return tuple(self.settings.get("controls", CONTROLS))

    def __getitem__(self, cell: tuple[str, str]) -> Score:
        """The score of a method by a metric."""
        method, metric = cell
        return self.scores[self._method(method), self._column(metric).name]

    @cached_property
    def scores(self) -> dict[tuple[str, str], Score]:
        """Every cell."""
        return {(m, c.name): self._score(m, c) for m in self.methods for c in self.columns}

    def best(self, metric: str) -> str:
        """The method with the best score, controls among them, whether it is told apart or not: see `star`."""
        column = self._column(metric)
        known = [m for m in self.methods if not math.isnan(self[m, metric].value)]
        if not known:
            raise ParameterError(f"No method has a score by {metric!r}.")
        return max(known, key=lambda m: float(column.gain(self[m, metric].value)))

    def star(self, metric: str) -> str | None:
        """The method that is told apart from all others as the best, or None; in 5 % of tables at most it is not."""
        return self._stars[self._column(metric).name]

    @cached_property
    def _stars(self) -> dict[str, str | None]:
        return {column.name: self._starred(column) for column in self.columns}

    def _starred(self, column: Column) -> str | None:
        names, gains, weights = self.gains(column.name)
        if len(names) < 2 or len(gains) < 2:
            return None
        left = permutation.behind_best(gains, weights, int(self.settings["seed"])) > permutation.ERROR
        winner = names[int(left.argmax())] if left.sum() == 1 else None
        return winner if winner not in self.controls and winner == self.best(column.name) else None

    def gains(self, metric: str) -> tuple[list[str], Array, Array]:
        """Methods with a score for most rows, their rows' scores turned so that more is better, and rows' weights.

        The scores are (rows, methods), of the rows that all these methods have; equal rows are one, with their number
        as weight.
        """
        column = self._column(metric)
        counts = {m: len(self._rows_of(m, column)) for m in self.methods}
        names = [m for m in self.methods if counts[m] and counts[m] >= max(counts.values()) / 2]
        values, weights, _ = self.sample(column, names)
        return names, np.asarray(column.gain(values)), weights

    def difference(self, metric: str, a: str, b: str) -> Score:
        """How much a scores above b, over the rows that both have, with its paired interval."""
        column = self._column(metric)
        values, weights, rows = self.sample(column, [self._method(a), self._method(b)])
        if rows == 0:
            return Score(math.nan, math.nan, math.nan, 0, {})
        apart = values[:, 0] - values[:, 1]
        low, high = bootstrap.interval(apart[:, None], weights, int(self.settings["seed"]))
        if self._method(a) == self._method(b):
            low = high = np.zeros(1)
        return Score(float(weights @ apart / weights.sum()), float(low[0]), float(high[0]), rows, {})

    def tests(self, metric: str) -> Differences:
        """All pairs of methods: mean difference, its interval, effect size, and p corrected for all of them."""
        from whence.evaluation.evidence import tested

        return tested(self, self._column(metric))

    def operator_sensitivity(self, metric: str) -> Agreement:
        """Whether methods rank alike by a metric's columns with other ways of removing: Kendall's τ, with interval."""
        from whence.evaluation.evidence import ranked_alike

        return ranked_alike(self, metric)

    def rows(self, method: str, metric: str) -> Rows:
        """A cell's rows by their values: `.worst(5)` explains these again and shows them."""
        from whence.evaluation.evidence import Rows

        column, name = self._column(metric), self._method(method)
        values = {row: self.results[name, column.name][row].value for row in self._rows_of(name, column)}
        return Rows(self, name, column, values)

    def curve(self, method: str, metric: str) -> tuple[list[float], list[float]] | None:
        """The mean curve over rows, where the metric draws one; values that are missing take no part."""
        found = self._curves(method, metric)
        if found is None:
            return None
        x, y, weights = found
        there = ~np.isnan(y)
        whole = (weights[:, None] * there).sum(0)
        mean = (weights[:, None] * np.where(there, y, 0)).sum(0) / np.where(whole > 0, whole, np.nan)
        return x, mean.tolist()

    def band(self, method: str, metric: str) -> tuple[list[float], list[float]] | None:
        """The 95 % interval of each point of the mean curve; NaN where the rows allow none."""
        found = self._curves(method, metric)
        if found is None:
            return None
        _, y, weights = found
        low, high = np.full(y.shape[1], np.nan), np.full(y.shape[1], np.nan)
        whole = ~np.isnan(y).any(0)
        if set(np.unique(y[:, whole])) == {0.0, 1.0}:
            rows = bootstrap.effective(len(y), weights)
            low, high = np.array([bootstrap.wilson(p, rows) for p in weights @ y / weights.sum()]).T
        elif len(y) > 1:
            low[whole], high[whole] = bootstrap.interval(y[:, whole], weights, int(self.settings["seed"]))
            for i in np.nonzero(~whole)[0]:
                there = ~np.isnan(y[:, i])
                low[i], high[i] = (float(v[0]) for v in bootstrap.interval(y[there][:, [i]], weights[there]))
        low, high = self._column(metric).held(low, high, curve=True)
        return low.tolist(), high.tolist()

    def _curves(self, method: str, metric: str) -> tuple[list[float], Array, Array] | None:
        """The points, each distinct row's values there (rows, points), and how often each row came."""
        results = self.results[self._method(method), self._column(metric).name]
        curves = {row: r.curve for row, r in results.items() if r.curve is not None}
        if not curves:
            return None
        groups = self._groups(sorted(curves))
        y = np.array([np.mean([curves[row][1] for row in rows], 0) for rows in groups])
        return list(next(iter(curves.values()))[0]), y, np.array([len(rows) for rows in groups], dtype=float)

    def seconds_per_row(self, method: str) -> float:
        """What a method took to explain one row; with few rows, its first call, which is slow, is counted too."""
        own = self.cost[self._method(method)]
        return own.get("seconds", 0.0) / max(own.get("rows", 0.0), 1.0)

    def passes(self, method: str) -> tuple[float, float]:
        """The forward and backward passes that a row took part in; (0, 0) where they were not counted."""
        own = self.cost[self._method(method)]
        rows = max(own.get("rows", 0.0), 1.0)
        return own.get("forward", 0.0) / rows, own.get("backward", 0.0) / rows

    def times_fb(self, method: str) -> float:
        """A method's time for one row, in those of one forward and backward pass (`gradient`); NaN if not measured."""
        return self.seconds_per_row(method) / (float(self.settings.get("fb") or 0) or math.nan)

    def _method(self, name: str) -> str:
        if name not in self.methods and name in known_methods:
            name = known_methods.label(name)  # by an alias
        if name not in self.methods:
            raise ParameterError(f"The table has no {name!r}. {did_you_mean(str(name), self.methods)}")
        return name

    def _column(self, name: str) -> Column:
        found = next((column for column in self.columns if column.name == name), None)
        if found is None:
            raise ParameterError(f"The table has no metric {name!r}. {did_you_mean(name, self.metrics)}")
        return found

    # ---- rows, equal ones as one ----

    def _rows_of(self, method: str, column: Column) -> list[int]:
        return [row for row, r in sorted(self.results[method, column.name].items()) if not math.isnan(r.value)]

    def _groups(self, rows: Sequence[int]) -> list[list[int]]:
        """Rows that are equal together."""
        groups: dict[int, list[int]] = {}
        for row in rows:
            groups.setdefault(self.copies.get(row, row), []).append(row)
        return list(groups.values())

    def sample(self, column: Column, names: Sequence[str]) -> tuple[Array, Array, int]:
        """Scores (distinct rows, methods) over the rows that all have, how often each row came, and the rows in all.

        Where a data set's score is no mean over rows, they are each row's share in it, by the jackknife.
        """
        shared = sorted(set.intersection(*(set(self._rows_of(m, column)) for m in names)) if names else ())
        groups, sources = self._groups(shared), [self.results[m, column.name] for m in names]
        weights = np.array([len(rows) for rows in groups], dtype=float)
        combine = column.facts.get("combine")
        if not groups:
            return np.zeros((0, len(names))), weights, 0
        if combine is None:
            values = np.array([[np.mean([of[row].value for row in rows]) for of in sources] for rows in groups])
            return values, weights, len(shared)
        keys = list(sources[0][shared[0]].parts)
        lines = []
        for of in sources:
            parts = np.array([[math.fsum(of[row].parts[key] for row in rows) for key in keys] for rows in groups])
            lines.append(bootstrap.pseudo_values(lambda sums: combine(dict(zip(keys, sums, strict=True))), parts))
        return np.stack(lines, 1), np.ones(len(groups)), len(shared)

    @cached_property
    def _proportions(self) -> frozenset[str]:
        """Metrics whose rows' values are yes and no."""
        seen = {c.name: {r.value for m in self.methods for r in self.results[m, c.name].values()} for c in self.columns}
        known = {name: {v for v in values if not math.isnan(v)} for name, values in seen.items()}
        return frozenset(c.name for c in self.columns if c.facts.get("combine") is None and (
            known[c.name] == {0.0, 1.0} or (c.facts.get("proportion") and known[c.name] <= {0.0, 1.0})))  # fmt: skip

    def _score(self, method: str, column: Column) -> Score:
        results = self.results[method, column.name]
        counted = [results[row].value for row in self._rows_of(method, column)]
        parts = _means([results[row] for row in sorted(results)])
        values, weights, rows = self.sample(column, [method])
        if rows == 0:
            return Score(math.nan, math.nan, math.nan, 0, parts)
        value = float(weights @ values[:, 0] / weights.sum())
        if rows < 2:
            low = high = math.nan
        elif column.name in self._proportions:
            low, high = bootstrap.wilson(value, bootstrap.effective(len(values), weights))
        else:
            found = column.held(*bootstrap.interval(values, weights, int(self.settings["seed"])))
            low, high = float(found[0][0]), float(found[1][0])
        return Score(value, low, high, rows, parts, statistics.median(counted))

    # ---- showing and keeping ----

    def show(self) -> None:
        """Print the table."""
        say(self)

    def __str__(self) -> str:
        from whence.views.scoreboard import table

        return table(self)

    def __repr__(self) -> str:
        return f"Scoreboard({len(self.methods)} methods × {len(self.columns)} metrics, {self.settings['rows']} rows)"

    def plot(self, metric: str | None = None, ax: Any = None) -> Any:
        """Draw the methods' mean curves by one metric, or by each that has curves; the axes are given back."""
        from whence.views.curves import plot

        return plot(self, metric, ax)

    def to_html(self, path: Place = None, *, title: str = "Whence: methods measured") -> str:
        """A self-contained page; written to a file, if there is a path."""
        from whence.views.html import page
        from whence.views.scoreboard import section

        return page_written(page(title, [section(self)]), path)

    def to_markdown(self, path: Place = None) -> str:
        """The table in Markdown; written to a file, if there is a path."""
        from whence.views.scoreboard import markdown

        return written(markdown(self), path)

    def to_latex(self, path: Place = None) -> str:
        """The table in LaTeX, for booktabs; written to a file, if there is a path."""
        from whence.views.scoreboard import latex

        return written(latex(self), path)

    def save(self, path: str | PathLike[str]) -> None:
        """Write what the name's ending says: html, csv, json, md, tex, png, svg or pdf."""
        from whence.views.export import write

        write(self, path)

    def _repr_html_(self) -> str:
        from whence.views.scoreboard import section

        return section(self)

    def to_csv(self, path: Place = None) -> str:
        """One line per method and metric; written to a file, if there is a path."""
        lines = [
            [method, column.name, column.better, s.value, s.low, s.high, s.median, s.rows]
            for column in self.columns
            for method in self.methods
            for s in [self[method, column.name]]
        ]
        head = ["method", "metric", "better", "value", "low", "high", "median", "rows"]
        return written(csv_text(head, lines), path)

    def to_json(self, path: Place = None) -> str:
        """Everything in the table: settings, scores, costs, failures, mean curves; NaN is null."""
        cells = [
            {
                "method": method, "metric": column.name, "value": _number(s.value), "low": _number(s.low),
                "high": _number(s.high), "median": _number(s.median), "rows": s.rows,
                "parts": {k: _number(v) for k, v in s.parts.items()},
                "curve": self._plain_curve(method, column.name),
            }
            for column in self.columns
            for method in self.methods
            for s in [self[method, column.name]]
        ]  # fmt: skip
        told = {
            "settings": dict(self.settings),
            "metrics": {
                c.name: {"metric": c.metric, "better": c.better, **{k: str(v) for k, v in c.params.items()}}
                for c in self.columns
            },
            "scores": cells,
            "cost": {method: dict(own) for method, own in self.cost.items()},
            "failures": [str(failure) for failure in self.failures],
        }
        return written(json.dumps(told, ensure_ascii=False, indent=1), path)

    def _plain_curve(self, method: str, metric: str) -> Any:
        found = self.curve(method, metric)
        return None if found is None else [found[0], [_number(y) for y in found[1]]]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _means(results: Sequence[Result]) -> dict[str, float]:
    names = dict.fromkeys(name for r in results for name in r.parts)
    return {
        name: math.fsum(own) / len(own)
        for name in names
        if (own := [r.parts[name] for r in results if name in r.parts])
    }
