"""What the chunks of an evaluation add up to: the results row by row, costs, failures, and the table of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from whence.evaluation.answers.explanations import Ranker
from whence.evaluation.columns import Column
from whence.evaluation.examples import Failure
from whence.evaluation.requests import Result
from whence.evaluation.scoreboard import CONTROLS, Scoreboard
from whence.evaluation.source import Source


class Tally:
    """The results so far."""

    def __init__(self, lines: Sequence[Ranker], columns: Sequence[Column]) -> None:
        self.lines, self.columns = lines, columns
        self.results: dict[tuple[str, str], dict[int, Result]] = {(a.name, b.name): {} for a in lines for b in columns}
        self.cost: dict[str, dict[str, float]] = {line.name: {} for line in lines}
        self.failures: list[Failure] = []
        self.seconds = 0.0
        self.fb: float | None = None  # seconds of one row's pass forward and back

    def add(self, told: Any) -> None:
        """A chunk's results."""
        for method, metric, place, value, parts, curve in told["rows"]:
            self.results[method, metric][place] = Result(value, parts, None if curve is None else tuple(curve))
        for method, own in told["cost"].items():
            cost = self.cost[method]
            self.cost[method] = {key: cost.get(key, 0) + own.get(key, 0) for key in {**cost, **own}}
        self.failures += [Failure(*line) for line in told["failures"]]
        self.seconds += told["seconds"]
        self.fb = self.fb or told.get("fb")

    def board(self, source: Source, target: Any, seed: int) -> Scoreboard:
        """The table."""
        settings = {
            "target": target, "seed": seed, "rows": source.count, "fb": self.fb,
            "controls": [line.name for line in self.lines if line.method in CONTROLS],
        }  # fmt: skip
        return Scoreboard(
            tuple(line.name for line in self.lines), tuple(self.columns), self.results, self.cost,
            (*source.failures, *self.failures), settings, self.seconds, source.copies,
        )  # fmt: skip


# ---- what is in a result file ----


def results_fit(told: Any, chunks: int | None, lines: set[str], columns: set[str]) -> bool:
    """Whether this is a chunk's results, as `Work.chunk` gives them; nobody knows how many chunks a stream has."""
    number, rows, cost, failures = (told.get(name) for name in ("chunk", "rows", "cost", "failures"))
    return (
        _is_place(number)
        and (chunks is None or number < chunks)
        and isinstance(told.get("seconds"), int | float)
        and isinstance(rows, list)
        and all(isinstance(row, list) and len(row) == 6 and _row_fits(row, lines, columns) for row in rows)
        and isinstance(cost, dict)
        and cost.keys() <= lines
        and all(isinstance(own, dict) and _numbers(own.values()) for own in cost.values())
        and isinstance(failures, list)
        and all(isinstance(f, list) and len(f) == 4 and all(isinstance(part, str) for part in f[1:]) for f in failures)
    )


def _row_fits(row: list[Any], lines: set[str], columns: set[str]) -> bool:
    method, metric, place, value, parts, curve = row
    named = isinstance(method, str) and method in lines and isinstance(metric, str) and metric in columns
    drawn = curve is None or (
        isinstance(curve, list) and len(curve) == 2 and all(isinstance(axis, list) and _numbers(axis) for axis in curve)
    )
    return (
        named
        and _is_place(place)
        and _numbers([value])
        and isinstance(parts, dict)
        and _numbers(parts.values())
        and drawn
    )


def _is_place(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values)
