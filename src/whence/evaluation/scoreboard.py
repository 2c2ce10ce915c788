"""Scoreboard: what an evaluation found, row by row, and the table that is made of it."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from whence.errors import ParameterError, did_you_mean
from whence.evaluation.examples import Failure
from whence.evaluation.fingerprint import said
from whence.evaluation.requests import Result
from whence.methods import methods as known_methods
from whence.util.files import Place, csv_text, page_written, written
from whence.util.terminal import say

_DRAWS = 1000


@dataclass(frozen=True, eq=False)
class Column:
    """A metric as it was asked for."""

    name: str
    metric: str
    params: Mapping[str, Any]
    facts: Mapping[str, Any]

    @property
    def better(self) -> str:
        return str(self.facts["better"])

    @property
    def said(self) -> list[Any]:
        return [self.name, self.metric, said(self.params)]


@dataclass(frozen=True)
class Score:
    """One cell: the score over all rows, its 95 % interval, and how many rows counted."""

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
    cost: Mapping[str, Mapping[str, float]]  # by method: seconds, rows, copies asked
    failures: tuple[Failure, ...]
    settings: Mapping[str, Any]
    seconds: float  # spent on metrics

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def __getitem__(self, cell: tuple[str, str]) -> Score:
        """The score of a method by a metric."""
        method, metric = cell
        return self.scores[self._method(method), self._column(metric).name]

    @cached_property
    def scores(self) -> dict[tuple[str, str], Score]:
        """Every cell."""
        return {(m, c.name): self._score(m, c) for m in self.methods for c in self.columns}

    def best(self, metric: str) -> str:
        """The method with the best score, controls among them."""
        column = self._column(metric)
        sign = 1 if column.better == "higher" else -1
        known = [m for m in self.methods if not math.isnan(self[m, metric].value)]
        if not known:
            raise ParameterError(f"No method has a score by {metric!r}.")
        return max(known, key=lambda m: sign * self[m, metric].value)

    def difference(self, metric: str, a: str, b: str) -> Score:
        """How much a scores above b, over the rows that both have, with its paired interval."""
        column = self._column(metric)
        mine, other = (self.results[self._method(name), metric] for name in (a, b))
        both = [r for r in mine if r in other and not math.isnan(mine[r].value) and not math.isnan(other[r].value)]
        draws = _draws(len(both), int(self.settings["seed"]))
        found = [_finished(column, [source[row] for row in both], draws) for source in (mine, other)]
        return _scored(found[0] - found[1], len(both), {})

    def curve(self, method: str, metric: str) -> tuple[list[float], list[float]] | None:
        """The mean curve over rows, where the metric draws one; values that are missing take no part."""
        results = self.results[self._method(method), self._column(metric).name]
        curves = [r.curve for r in results.values() if r.curve is not None]
        if not curves:
            return None
        y = torch.tensor([curve[1] for curve in curves], dtype=torch.float64, device="cpu")
        return list(curves[0][0]), y.nanmean(0).tolist()

    def seconds_per_row(self, method: str) -> float:
        """What a method took to explain one row."""
        own = self.cost[self._method(method)]
        return own.get("seconds", 0.0) / max(own.get("rows", 0.0), 1.0)

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

    def _score(self, method: str, column: Column) -> Score:
        results = [self.results[method, column.name][row] for row in sorted(self.results[method, column.name])]
        counted = [r for r in results if not math.isnan(r.value)]
        draws = _draws(len(counted), int(self.settings["seed"]))
        median = statistics.median(r.value for r in counted) if counted else float("nan")
        return replace(_scored(_finished(column, counted, draws), len(counted), _means(results)), median=median)

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
        from whence.views.scoreboard import plot

        return plot(self, metric, ax)

    def to_html(self, path: Place = None, *, title: str = "Whence: methods measured") -> str:
        """A self-contained page; written to a file, if there is a path."""
        from whence.views.html import page
        from whence.views.scoreboard import section

        return page_written(page(title, [section(self)]), path)

    def save(self, path: str | PathLike[str]) -> None:
        """Write what the name's ending says: html, csv, json, png, svg or pdf."""
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


# ---- intervals ----


@lru_cache(maxsize=4)
def _draws(rows: int, seed: int) -> Tensor:
    """How often each row comes in each draw, (draws + 1, rows); the first line is the data as it is."""
    if rows == 0:
        return torch.zeros(1, 0, dtype=torch.float64, device="cpu")
    generator = torch.Generator().manual_seed(seed)
    picks = (torch.randint(rows, (rows,), generator=generator, device="cpu") for _ in range(_DRAWS))
    counts = [torch.bincount(pick, minlength=rows).double() for pick in picks]
    return torch.stack([torch.ones(rows, dtype=torch.float64, device="cpu"), *counts])


def interval(values: Tensor, seed: int = 0) -> tuple[float, float]:
    """The 95 % bootstrap interval of the mean of rows' values."""
    draws = _draws(len(values), seed)
    found = _scored(draws @ values / draws.sum(1), len(values), {})
    return found.low, found.high


def surely_above(values: Tensor, seed: int = 0) -> Tensor:
    """Which of several means over rows, (several, rows), are above 0, all of them together at 95 %.

    The bound is the largest deviation, in standard errors, that any of them shows in a bootstrap.
    """
    draws = _draws(values.shape[1], seed)
    means = values @ (draws / draws.sum(1, keepdim=True)).T  # (several, draws + 1)
    error = means[:, 1:].std(1).clamp(min=1e-12)
    largest = ((means[:, 1:] - means[:, :1]) / error[:, None]).amax(0)
    return means[:, 0] > largest.quantile(0.95) * error


def _finished(column: Column, results: list[Result], draws: Tensor) -> Tensor:
    """The score of each draw: the mean of rows' values, or what the metric makes of its parts' sums."""
    if not results:
        return torch.full((len(draws),), float("nan"), dtype=torch.float64, device="cpu")
    combine = column.facts.get("combine")
    if combine is None:
        values = torch.tensor([r.value for r in results], dtype=torch.float64, device="cpu")
        return draws @ values / draws.sum(1)
    names = list(results[0].parts)
    parts = torch.tensor([[r.parts[name] for name in names] for r in results], dtype=torch.float64, device="cpu")
    return torch.tensor(
        [combine(dict(zip(names, line, strict=True))) for line in (draws @ parts).tolist()],
        dtype=torch.float64,
        device="cpu",
    )


def _scored(found: Tensor, rows: int, parts: Mapping[str, float]) -> Score:
    drawn = found[1:][~found[1:].isnan()]
    if len(drawn) == 0 or rows < 2:
        return Score(float(found[0]), float("nan"), float("nan"), rows, parts)
    low, high = torch.quantile(drawn, torch.tensor([0.025, 0.975], dtype=torch.float64, device="cpu")).tolist()
    return Score(float(found[0]), low, high, rows, parts)


def _means(results: list[Result]) -> dict[str, float]:
    names = dict.fromkeys(name for r in results for name in r.parts)
    return {
        name: math.fsum(own) / len(own)
        for name in names
        if (own := [r.parts[name] for r in results if name in r.parts])
    }
