"""The work of an evaluation, chunk by chunk: explain, let every metric ask, answer all of them together."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whence.errors import InputError, ModelError, TargetError
from whence.evaluation.answers import attention, logits, other_models
from whence.evaluation.answers.explanations import Explainer, Ranker, blamed, scores_or_error
from whence.evaluation.columns import Column
from whence.evaluation.examples import Example, Failure, failed
from whence.evaluation.metrics import metrics
from whence.evaluation.requests import (
    Again,
    Attended,
    Copy,
    Erased,
    Moved,
    OtherClass,
    Randomised,
    Result,
    Retrained,
    Under,
    View,
)  # fmt: skip
from whence.results.attribution import Attribution

_WARM = 4  # rows; with as many, a method explains one row before it is timed, because the first call is slow


@dataclass
class _Task:
    """A metric at work on one row under one method."""

    view: View
    ranker: Ranker
    column: Column
    asking: Any = None  # its generator, once it has begun
    wants: list[Any] = field(default_factory=list)
    result: Result | None = None
    error: Exception | None = None
    asked: int = 0

    def go_on(self, answers: Any = None) -> None:
        """Run until the next question, the result, or an error."""
        try:
            if self.asking is None:
                self._check()
                found = metrics[self.column.metric].function(self.view, **self.column.params)
                if not isinstance(found, Generator):
                    self.result, self.wants = found, []
                    return
                self.asking = found
            self.wants = list(self.asking.send(answers))
            self.asked += len(self.wants)
        except StopIteration as done:
            self.result, self.wants = done.value, []
        except Exception as error:
            self.error, self.wants = error, []

    def _check(self) -> None:
        """Whether the row comes with what the metric needs."""
        for need in self.column.facts.get("needs", ()):
            if need != "attention" and getattr(self.view.example, need) is None:
                raise InputError(f"The row has no {need}.")


@dataclass(frozen=True, eq=False)
class Work:
    """What is evaluated, by what, and how."""

    explainer: Explainer
    lines: Sequence[Ranker]
    columns: Sequence[Column]
    target: Any
    seed: int
    batch_size: int | None

    def chunk(self, examples: Sequence[Example], first: bool) -> dict[str, Any]:
        """Everything about some rows, as plain data."""
        failures: list[Failure] = []
        told = self._predicted(examples, failures, first)
        examples = [example for example in examples if example.place in told]
        tasks, cost = [], {}
        for line in self.lines:
            errors: list[Exception] = []
            if first and len(examples) >= _WARM:
                self._views(line, examples[:1], told, [], [])
            start = time.perf_counter()
            views = self._views(line, examples, told, failures, errors)
            cost[line.name] = {"seconds": time.perf_counter() - start, "rows": len(views), **_passes(views)}
            if first and errors and not views:
                raise errors[0]  # nothing of it works: better now than after an hour
            tasks += [_Task(view, line, column) for view in views for column in self.columns]
        fb = self._fb(tasks) if first else None
        start = time.perf_counter()
        self._drive(tasks)
        if first:
            self._stopped(tasks)
        failures += [failed(t.error, t.view.example.place, t.ranker.name, t.column.name) for t in tasks if t.error]
        for task in tasks:
            own = cost[task.ranker.name]
            own["asked"] = own.get("asked", 0) + task.asked
        return {
            "rows": [
                [t.ranker.name, t.column.name, t.view.example.place, t.result.value, t.result.parts, t.result.curve]
                for t in tasks
                if t.result is not None
            ],
            "cost": cost,
            "seconds": time.perf_counter() - start,
            "failures": [[f.row, f.method, f.metric, f.why] for f in failures],
            **({} if fb is None else {"fb": fb}),
        }

    def explained(self, name: str, examples: Sequence[Example]) -> list[Attribution | None]:
        """Some rows' attributions by one of the methods, explained again as they were; None where that fails."""
        line = next(line for line in self.lines if line.name == name)
        told = self._predicted(examples, [], False)
        views = self._views(line, [example for example in examples if example.place in told], told, [], [])
        found = {view.example.place: view.attribution for view in views}
        return [found.get(example.place) for example in examples]

    def _fb(self, tasks: Sequence[_Task]) -> float | None:
        """Seconds for one row of `gradient`, which is one forward and one backward pass; None where that fails."""
        views, seconds = list({task.view.example.place: task.view for task in tasks}.values()), None
        for some in (views[:1], views) if views else ():  # the first time is slow
            start = time.perf_counter()
            found = self.explainer.of_rows(
                Ranker("gradient", "gradient"), [view.example for view in some], [view.target for view in some]
            )
            seconds = (time.perf_counter() - start) / len(some)
            if any(isinstance(a, Exception) for a in found):
                return None
        return seconds

    def _predicted(self, examples: Sequence[Example], failures: list[Failure], first: bool) -> dict[int, Tensor]:
        """The logits of each row as it is, by its place."""
        try:
            found: Sequence[Any] = logits.of_examples(examples, self.batch_size)
        except Exception:
            found = [_tried(logits.of_examples, [example], 1) for example in examples]
        for example, line in zip(examples, found, strict=True):
            if isinstance(line, Exception):
                failures.append(failed(line, example.place))
        good = {c.place: line for c, line in zip(examples, found, strict=True) if isinstance(line, Tensor)}
        if not good and first:
            raise next(line for line in found if isinstance(line, Exception))
        return good

    def _views(
        self,
        line: Ranker,
        examples: Sequence[Example],
        told: Mapping[int, Tensor],
        failures: list[Failure],
        errors: list[Exception],
    ) -> list[View]:
        """Rows as a method explained them; what went wrong is a failure to report and an error to raise."""
        wanted, kept = [], []
        for example in examples:
            logits = told[example.place]
            number = int(logits.argmax()) if self.target == "predicted" else self.target  # of one logit, that one
            number = example.label if self.target == "label" else number
            if number is None or not 0 <= int(number) < len(logits):
                why = f"there is no class {number}: the output has {len(logits)} classes"
                why = "it has no label" if number is None else why
                failures.append(Failure(example.place, line.name, "", why))
                errors.append(TargetError(f"No row can be explained: {why}.\n  Give another target=."))
                continue
            wanted.append(int(number))
            kept.append(example)
        found = self.explainer.of_rows(line, kept, wanted) if kept else []
        views = []
        for example, number, a in zip(kept, wanted, found, strict=True):
            scores = scores_or_error(example, a)
            if isinstance(scores, Tensor) and isinstance(a, Attribution):
                views.append(View(example, line.name, scores, number, a, told[example.place], self.seed))
            elif isinstance(scores, Exception):
                errors.append(blamed(scores, line, example.place))
                failures.append(failed(scores, example.place, line.name))
        return views

    def _drive(self, tasks: list[_Task]) -> None:
        """Let every metric ask, answer all of them together, until each has its result."""
        for task in tasks:
            task.go_on()
        while waiting := [task for task in tasks if task.wants]:
            asked = [(task, want) for task in waiting for want in task.wants]
            answers: dict[int, list[Any]] = {id(task): [None] * len(task.wants) for task in waiting}
            places = [(id(task), i) for task in waiting for i in range(len(task.wants))]
            groups: dict[Any, list[int]] = {}
            for number, (task, want) in enumerate(asked):
                groups.setdefault(_kind(task, want), []).append(number)
            for members in groups.values():
                for number, answer in zip(members, self._answers([asked[n] for n in members]), strict=True):
                    key, i = places[number]
                    answers[key][i] = answer
            for task in waiting:
                given = answers[id(task)]
                bad = next((a for a in given if isinstance(a, Exception)), None)
                if bad is not None:
                    task.error, task.wants = bad, []
                else:
                    task.go_on(given)

    def _answers(self, asked: Sequence[tuple[_Task, Any]]) -> list[Any]:
        """All requests of one kind at once; one by one where that fails."""
        answer = _ANSWERS[type(asked[0][1])]
        try:
            return [_finite(found) for found in answer(self, asked)]
        except Exception as error:
            if len(asked) == 1:
                return [error]
            return [_tried(answer, self, [one]) for one in asked]

    def _stopped(self, tasks: Sequence[_Task]) -> None:
        """A metric that fails for every row and method of the first chunk is a mistake of the call."""
        for column in self.columns:
            own = [task for task in tasks if task.column is column]
            if own and all(task.error is not None for task in own):
                raise own[0].error  # type: ignore[misc]


def _passes(views: Sequence[View]) -> dict[str, float]:
    """Forward and backward passes that each row took part in, summed over rows; a function's own are not seen."""
    receipts = [view.attribution.receipt for view in views]
    return {kind: float(sum(r.get(f"{kind}_passes", 0) for r in receipts)) for kind in ("forward", "backward")}


def _finite(found: Any) -> Any:
    """An answer, if it is one."""
    if isinstance(found, Tensor) and not bool(torch.isfinite(found).all()):
        return ModelError("The model, or the method, gave numbers that are not finite for a changed row.")
    return found


def _tried(work: Callable[..., list[Any]], *arguments: Any) -> Any:
    """The one answer, or the error."""
    try:
        return _finite(work(*arguments)[0])
    except Exception as error:
        return error


def _kind(task: _Task, want: Any) -> Any:
    """What can be answered together."""
    if isinstance(want, Again):
        return Again, task.ranker.name
    if isinstance(want, Randomised):
        return Randomised, task.ranker.name, want.stage, want.stages, want.alone
    if isinstance(want, OtherClass | Under | Retrained):
        return type(want), task.ranker.name, want.key
    return type(want)


def _plain(answer: Callable[..., list[Tensor]]) -> Callable[[Work, Sequence[tuple[_Task, Any]]], list[Any]]:
    return lambda work, asked: answer([(task.view, want) for task, want in asked], work.batch_size)


def _steps(work: Work, asked: Sequence[tuple[_Task, Any]]) -> list[Any]:
    return work.explainer.of_steps(asked[0][0].ranker, [(task.view, want) for task, want in asked])


def _randomised(work: Work, asked: Sequence[tuple[_Task, Any]]) -> list[Any]:
    return work.explainer.randomised(asked[0][0].ranker, [(task.view, want) for task, want in asked])


def _elsewhere(answer: Callable[..., list[Any]]) -> Callable[[Work, Sequence[tuple[_Task, Any]]], list[Any]]:
    return lambda work, asked: answer(
        work.explainer, asked[0][0].ranker, [(task.view, want) for task, want in asked], work.batch_size
    )


_ANSWERS: dict[type, Callable[[Work, Sequence[tuple[_Task, Any]]], list[Any]]] = {
    Copy: _plain(logits.of_copies),
    Moved: _plain(logits.of_steps),
    Erased: _plain(attention.of_erasures),
    Attended: _plain(attention.attention),
    Again: _steps,
    Randomised: _randomised,
    OtherClass: _elsewhere(other_models.of_classes),
    Under: _elsewhere(other_models.under),
    Retrained: _elsewhere(other_models.retrained),
}
