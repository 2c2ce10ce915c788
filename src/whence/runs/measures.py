"""Metrics of the rows of a shard: what `whence.evaluate` finds for each row and method."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from whence.errors import InputError, WhenceError, WhenceWarning
from whence.evaluation.evaluate import evaluate
from whence.runs.job import Job
from whence.runs.rows import Row, class_of, together

_OPTIONS = ("baseline", "output", "seed", "wrt")


def measured(
    job: Job, model: Any, kind: str, rows: Sequence[Row]
) -> tuple[dict[tuple[int, str], float], list[tuple[int, str, Exception]]]:
    """A number by row's place and column, "metric_method"; and what failed: a row's place, the method, the error."""
    data = [{"inputs": _inputs(row, kind), **_label(row), **(row.beside or {})} for row in rows]
    methods = {label: {"method": own["method"], **own["params"]} for label, own in job.methods.items()}
    target = job.options.get("target")
    options = {name: job.options[name] for name in _OPTIONS if name in job.options}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WhenceWarning)
            board = evaluate(
                model, data, methods=methods, metrics=job.metrics, controls=False, progress=False,
                target="predicted" if target is None else target, batch_size=job.batch_size, **options,
            )  # fmt: skip
    except WhenceError as error:
        return {}, [(row.place, "", error) for row in rows]
    values = {
        (rows[place].place, f"{metric}_{label}"): result.value
        for (label, metric), results in board.results.items()
        for place, result in results.items()
    }
    return values, [
        (rows[failure.row].place, failure.method, InputError(f"{failure.metric}: {failure.why}"))
        for failure in board.failures
    ]


def _inputs(row: Row, kind: str) -> Any:
    if kind != "numbers":
        return row.inputs
    import torch

    given, _ = together([row], kind)
    if isinstance(given, dict):
        return {name: torch.from_numpy(part)[0] for name, part in given.items()}
    return torch.from_numpy(given)[0].float()


def _label(row: Row) -> dict[str, Any]:
    number = class_of(row.label)
    return {} if number is None else {"label": number}
