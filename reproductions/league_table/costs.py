"""What each method of a field costs, in CPU time beside that of a plain gradient, in turns."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import whence
from reproductions.league_table.fields import Field, Methods
from reproductions.report import Report

ROWS = {"horses": 3}  # explained together; elsewhere 8
ROUNDS, CHEAP = 5, 8.0  # what costs more than so many gradients is timed once


def times(report: Report, field: Field) -> dict[str, float]:
    """By method: its CPU time as a multiple of that of `gradient` on the same rows."""
    count = 2 if report.quick else ROWS.get(field.name, 8)
    methods = dict(list(field.methods.items())[:2]) if report.quick else {**field.methods, "random": {}}
    return dict(report.once(f"costs-{field.name}", partial(_measured, field, methods, count), methods, count))


def _measured(field: Field, methods: Methods, count: int) -> dict[str, float]:
    model, rows = field.model(), field.rows(field.count)
    given = [row.get("text", row.get("image")) for row in rows[:: len(rows) // count][:count]]
    how: dict[str, Any] = {"target": None if field.target == "predicted" else field.target, "progress": False}

    def job(name: str, params: dict[str, Any]) -> Callable[[], Any]:
        asked = {"method": name, "batch_size": field.batch_size, **params, **how}
        return lambda: whence.explain(model, given, **asked)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", whence.WhenceWarning)
        return {name: _ratio(job(name, params), job("gradient", {})) for name, params in methods.items()}


def _ratio(one: Callable[[], Any], other: Callable[[], Any]) -> float:
    """The median over rounds of what one takes in terms of the other, timed right before and after it."""
    other()
    found: list[float] = []
    for _ in range(ROUNDS):
        before, own, after = (_seconds(job) for job in (other, one, other))
        found.append(2 * own / (before + after))
        if found[0] > CHEAP:
            break
    return statistics.median(found)


def _seconds(job: Callable[[], Any]) -> float:
    start = time.process_time()
    job()
    return time.process_time() - start
