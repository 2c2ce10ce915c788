"""`whence.evaluate`: methods by metrics, on the user's model and rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, Literal

from whence.adapters.wrapped import Wrapped
from whence.errors import InputError, ParameterError, TargetError
from whence.evaluation.answers.explanations import Explainer, Ranker, rankers
from whence.evaluation.data import listed, named
from whence.evaluation.examples import Example, Failure, copies, failed, read_example, read_masks, seeded
from whence.evaluation.fingerprint import fingerprint_of, said
from whence.evaluation.journal import VERSION, Journal
from whence.evaluation.metrics import metrics as known_metrics
from whence.evaluation.removal import default
from whence.evaluation.requests import Result
from whence.evaluation.scheduler import Work
from whence.evaluation.scoreboard import CONTROLS, Column, Scoreboard
from whence.util.checks import check_count, is_whole, not_allowed
from whence.util.progress import bar

CHUNK = 32  # rows that are explained and perturbed together, unless `chunk` says otherwise


def evaluate(
    model: Any,
    data: Any,
    *,
    methods: Any,
    metrics: Any,
    labels: Any = None,
    masks: Any = None,
    rationales: Any = None,
    target: Literal["predicted", "label"] | int = "predicted",
    operator: Any = None,
    seed: int = 0,
    controls: bool = True,
    batch_size: int | None = None,
    chunk: int | None = None,
    resume: str | PathLike[str] | None = None,
    progress: bool | None = None,
    wrt: Any = None,
    **options: Any,
) -> Scoreboard:
    """Measure methods by metrics on the rows of a data set: a table with intervals and the random control.

    `data` are tensors, texts, images, or rows as dicts with "inputs" and what metrics need of "label", "mask" and
    "rationale". `chunk` rows are explained and perturbed together; `batch_size` is the most rows, copies included, that
    the model sees at once. Further options go to `explain`. `resume` names a file where an interrupted run goes on.
    """
    columns = _columns(metrics, operator)
    lines = _lines(methods, controls)
    _check(model, target, batch_size, seed)
    size = CHUNK if chunk is None else chunk
    check_count("chunk", size)
    rows = listed(model, data, {"label": labels, "mask": masks, "rationale": rationales})
    examples, failures = _cases(model, rows, wrt)
    examples = read_masks(seeded(examples))
    if isinstance(model, Wrapped) and isinstance(target, str) and target not in ("predicted", "label"):
        target = model.target(target)
    columns = [_with_operator(column, examples[0]) for column in columns]
    _check_needs(columns, examples, target)
    if controls and "edges" not in {line.name for line in lines} and all(example.image for example in examples):
        lines = [*lines, Ranker("edges", "edges")]
    work = Work(Explainer(model, options, seed, wrt, batch_size), lines, columns, target, seed, batch_size)
    header = {
        "methods": {line.name: line.said for line in lines}, "metrics": [column.said for column in columns],
        "target": target, "seed": int(seed), "wrt": said(wrt), "options": said(options), "version": VERSION,
        **({} if size == CHUNK else {"chunk": size}),
        **(fingerprint_of(model, examples) if resume is not None else {}),
    }  # fmt: skip
    chunks = [examples[start : start + size] for start in range(0, len(examples), size)]
    fits = partial(_fits, chunks=len(chunks), lines={a.name for a in lines}, columns={b.name for b in columns})
    with Journal(resume, header, fits) as journal, bar(len(examples), progress, "evaluate") as counted:
        for number, some in enumerate(chunks):
            if number not in journal.chunks:
                journal.add(number, work.chunk(some, first=number == 0))
            counted(len(some))
    board = _board(journal, lines, columns, failures, header, len(rows), seed, copies(examples))
    by_place = {example.place: example for example in examples}
    return replace(board, again=lambda name, wanted: work.explained(name, [by_place[row] for row in wanted]))


# ---- what was asked ----


def _lines(methods: Any, controls: bool) -> list[Ranker]:
    found = rankers(methods)
    taken = next((line for line in found if line.name == "random" and line.method != "random"), None)
    if controls and taken is not None:
        raise ParameterError("The line 'random' is that of the control.\n  Give yours another name.")
    if controls and not any(line.name == "random" for line in found):
        found.append(Ranker("random", "random"))
    return found


def _columns(given: Any, operator: Any) -> list[Column]:
    """Names, or a dict from a column's name to a metric's parameters ("metric" among them, if it is another).

    Of several operators, each gets a column of every metric that removes units.
    """
    found = []
    several = list(operator) if isinstance(operator, list | tuple) and operator else [operator]
    if len({str(one) for one in several}) < len(several):
        raise not_allowed("operator", operator, "one way of removing, or several different ones")
    for name, params in named(given, "metric", ParameterError).items():
        entry = known_metrics[params.pop("metric", name)]
        free = operator is not None and "operator" in entry.parameters and "operator" not in params
        for one in several if free else [None]:
            own = {**params, "operator": one} if free else params
            title = f"{name} ({one})" if free and len(several) > 1 else name
            found.append(Column(title, entry.name, entry.check(own), entry.facts))
    return found


def _with_operator(column: Column, example: Example) -> Column:
    """The first of the metric's usual operators that these rows take, where none is asked for."""
    if column.params.get("operator", "") is not None:
        return column
    return replace(column, params={**column.params, "operator": default(example, *column.facts["operators"])})


def _check(model: Any, target: Any, batch_size: Any, seed: Any) -> None:
    label = isinstance(target, str) and isinstance(model, Wrapped) and target in model.labels.values()
    if not label and not is_whole(target) and not (isinstance(target, str) and target in ("predicted", "label")):
        raise not_allowed("target", target, '"predicted", "label", or the number of a class', error=TargetError)
    if batch_size is not None:
        check_count("batch_size", batch_size)
    if not is_whole(seed) or not 0 <= int(seed) < 2**31:
        raise not_allowed("seed", seed, "a whole number from 0 to 2³¹ − 1")


def _cases(model: Any, rows: Sequence[Mapping[str, Any]], wrt: Any) -> tuple[list[Example], list[Failure]]:
    """The rows that can be read, and those which cannot."""
    found = [read_example(model, row, place, wrt) for place, row in enumerate(rows)]
    examples = [example for example in found if isinstance(example, Example)]
    if not examples:
        raise next(error for error in found if isinstance(error, Exception))
    return examples, [failed(error, place) for place, error in enumerate(found) if isinstance(error, Exception)]


def _check_needs(columns: Sequence[Column], examples: Sequence[Example], target: Any) -> None:
    for column in columns:
        for need in column.facts.get("needs", ()):
            if need != "attention" and all(getattr(example, need) is None for example in examples):
                raise InputError(
                    f"{column.metric} needs {need}s, but the rows have none.\n"
                    f"  Give {need}s= one per row, or leave the metric out."
                )
        kind = str(column.facts.get("of"))
        fits = {"images": all(c.image for c in examples), "values": not any(c.ids for c in examples)}
        if not fits.get(kind, True):
            raise InputError(
                f"{column.metric} is for {kind}, but the rows are something else.\n  Leave the metric out."
            )
    if target == "label" and all(example.label is None for example in examples):
        raise InputError('target="label" needs labels, but the rows have none.\n  Give labels= one per row.')


# ---- the table ----


def _fits(told: Any, chunks: int, lines: set[str], columns: set[str]) -> bool:
    """Whether this is a chunk's results, as `Work.chunk` gives them."""
    number, rows, cost, failures = (told.get(name) for name in ("chunk", "rows", "cost", "failures"))
    return (
        _is_place(number)
        and number < chunks
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


def _board(
    journal: Journal, lines: Sequence[Ranker], columns: Sequence[Column], failures: Sequence[Failure],
    header: Mapping[str, Any], rows: int, seed: int, copies: Mapping[int, int],
) -> Scoreboard:  # fmt: skip
    results: dict[tuple[str, str], dict[int, Result]] = {(a.name, b.name): {} for a in lines for b in columns}
    cost: dict[str, dict[str, float]] = {line.name: {} for line in lines}
    all_failures, seconds = list(failures), 0.0
    for number in sorted(journal.chunks):
        told = journal.chunks[number]
        for method, metric, place, value, parts, curve in told["rows"]:
            results[method, metric][place] = Result(value, parts, None if curve is None else tuple(curve))
        for method, own in told["cost"].items():
            cost[method] = {key: cost[method].get(key, 0) + amount for key, amount in own.items()}
        all_failures += [Failure(*line) for line in told["failures"]]
        seconds += told["seconds"]
    timed = [told["fb"] for told in journal.chunks.values() if told.get("fb")]
    settings = {
        "target": header["target"], "seed": seed, "rows": rows, "fb": timed[0] if timed else None,
        "controls": [line.name for line in lines if line.method in CONTROLS],
    }  # fmt: skip
    return Scoreboard(tuple(line.name for line in lines), tuple(columns), results, cost, tuple(all_failures), settings,
                      seconds, copies)  # fmt: skip
