"""`whence.evaluate`: methods by metrics, on the user's model and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any, Literal

from whence.adapters.wrapped import Wrapped
from whence.errors import InputError, ParameterError, TargetError
from whence.evaluation.answers.explanations import Explainer, Ranker, rankers
from whence.evaluation.columns import Column
from whence.evaluation.data import is_stream, listed, named, streamed
from whence.evaluation.examples import Example
from whence.evaluation.fingerprint import fingerprint_of, rows_of, said
from whence.evaluation.journal import VERSION, Journal
from whence.evaluation.metrics import metrics as known_metrics
from whence.evaluation.removal import default
from whence.evaluation.scheduler import Work
from whence.evaluation.scoreboard import Scoreboard
from whence.evaluation.source import Source
from whence.evaluation.tally import Tally, results_fit
from whence.util.checks import check_count, is_whole, not_allowed
from whence.util.progress import bar

Answers = Callable[[list[int], list[int]], Iterable[tuple[int, dict[str, Any]]]]  # chunks and sizes → results
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
    executor: str = "inline",
    workers: int | None = None,
    task: str | None = None,
    long: str = "error",
    **options: Any,
) -> Scoreboard:
    """Measure methods by metrics on the rows of a data set: a table with intervals and the random control.

    `data` are tensors, texts, images, or rows as dicts with "inputs" and what metrics need of "label", "mask" and
    "rationale". `chunk` rows are explained and perturbed together; `batch_size` is the most rows, copies included, that
    the model sees at once. Further options go to `explain`. `resume` names a file where an interrupted run goes on. A
    generator, or a DataLoader, is read chunk by chunk: of its rows, scores are kept and nothing else. With
    `executor="process"` or "ray" the chunks go to `workers`, and the model is a name that each can load (`whence.run`);
    `task` and `long` are those of `whence.load`, for a model that is given by its name.
    """
    given = {
        "methods": methods, "metrics": metrics, "labels": labels, "masks": masks, "rationales": rationales,
        "target": target, "operator": operator, "seed": seed, "controls": controls, "batch_size": batch_size,
        "chunk": chunk, "wrt": wrt, "options": options,
    }  # fmt: skip
    if isinstance(model, str) or executor != "inline" or task is not None or long != "error":
        from whence.runs.evaluation import elsewhere

        model, answers = elsewhere(model, data, given, executor, workers, task=task, long=long)
    else:
        answers = None
    prepared = prepare(model, data, given, fingerprint=resume is not None)
    known = None if prepared.source.stream else {example.place: example for example in prepared.source.first}
    board = _run(prepared, resume, progress, answers)
    if known is None:
        return board
    work = prepared.work
    return replace(board, again=lambda name, wanted: work.explained(name, [known[row] for row in wanted]))


@dataclass(frozen=True, eq=False)
class Prepared:
    """An evaluation that has yet to be done: what is to be found out about which rows."""

    work: Work
    source: Source
    header: dict[str, Any]


def prepare(model: Any, data: Any, given: Mapping[str, Any], fingerprint: bool = False) -> Prepared:
    """Everything checked, and the rows read (of a stream, the first chunk)."""
    columns = _columns(given["metrics"], given["operator"])
    lines = _lines(given["methods"], given["controls"])
    target, seed, batch_size, wrt = (given[name] for name in ("target", "seed", "batch_size", "wrt"))
    _check(model, target, batch_size, seed)
    size = CHUNK if given["chunk"] is None else given["chunk"]
    check_count("chunk", size)
    stream, extra = is_stream(data), {name: given[f"{name}s"] for name in ("label", "mask", "rationale")}
    source = Source(model, streamed(data, extra) if stream else listed(model, data, extra), wrt, size, stream)
    examples = source.first
    if isinstance(model, Wrapped) and isinstance(target, str) and target not in ("predicted", "label"):
        target = model.target(target)
    columns = [_with_operator(column, examples[0]) for column in columns]
    _check_needs(columns, examples, target)
    if given["controls"] and "edges" not in {line.name for line in lines} and all(c.image for c in examples):
        lines = [*lines, Ranker("edges", "edges")]
    explainer = Explainer(model, given["options"], seed, wrt, batch_size)
    header = {
        "methods": {line.name: line.said for line in lines}, "metrics": [column.said for column in columns],
        "target": target, "seed": int(seed), "wrt": said(wrt), "options": said(given["options"]), "version": VERSION,
        **({} if size == CHUNK else {"chunk": size}),
        **({"stream": True} if stream else {}),
        **(fingerprint_of(model, examples) if fingerprint else {}),
    }  # fmt: skip
    return Prepared(Work(explainer, lines, columns, target, seed, batch_size), source, header)


def _run(prepared: Prepared, resume: Any, progress: bool | None, answers: Answers | None) -> Scoreboard:
    """The chunks one by one, out of the result file where it has them."""
    work, source = prepared.work, prepared.source
    own, total = source.stream and resume is not None, None if source.stream else len(source.first)
    names = {line.name for line in work.lines}, {column.name for column in work.columns}
    fits = partial(results_fit, chunks=source.chunks, lines=names[0], columns=names[1])
    tally = Tally(work.lines, work.columns)
    with Journal(resume, prepared.header, fits) as journal, bar(total, progress, "evaluate") as counted:
        if answers is not None:
            _spread(source, journal, tally, answers, counted)
            return tally.board(source, prepared.header["target"], int(work.seed))
        for number, some in enumerate(source):
            content = {"content": rows_of(some)} if own else {}
            told = journal.taken(number, content.get("content"))
            if told is None:
                told = journal.add(number, {**work.chunk(some, first=number == 0), **content})
            tally.add(told)
            counted(len(some))
            del some
    return tally.board(source, prepared.header["target"], int(work.seed))


def _spread(source: Source, journal: Journal, tally: Tally, answers: Answers, counted: Callable[..., object]) -> None:
    """The chunks that the result file does not have, by workers elsewhere, in whatever order they come."""
    sizes = [len(some) for some in source]
    found = {number: journal.taken(number, None) for number in range(len(sizes))}
    counted(sum(sizes[number] for number, told in found.items() if told is not None))
    for number, told in answers([number for number, told in found.items() if told is None], sizes):
        found[number] = journal.add(number, told)
        counted(sizes[number])
    for number in sorted(found):
        tally.add(found[number])


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
