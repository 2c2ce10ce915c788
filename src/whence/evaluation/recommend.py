"""`whence.recommend`: which method to trust on this model and these rows, with the evidence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.errors import InputError
from whence.evaluation import bootstrap, permutation
from whence.evaluation.answers.explanations import Explainer, Ranker, rankers
from whence.evaluation.data import listed
from whence.evaluation.evaluate import evaluate
from whence.evaluation.examples import Example, content, read_example
from whence.evaluation.scoreboard import Scoreboard
from whence.evaluation.trial import Clock, tried
from whence.methods import methods as known_methods
from whence.util.checks import not_allowed
from whence.util.files import Place, page_written, written
from whence.util.terminal import say

FEW = 6  # rows: with fewer, 2^(1 − rows), the least error that a statement can have, is above 5 %


GUARANTEE = (
    "In at most 5 % of data sets is a method called better than random that is not; and in at most 5 % is one called "
    "worse than the best that is as good. This supposes scores of similar shape for methods that are equally good."
)


@dataclass(frozen=True)
class Choice:
    """A method's place in the ranking."""

    method: str
    faithfulness: float  # mean over metrics, in standard deviations above the random control
    low: float  # of its 95 % interval; NaN where the rows allow none
    high: float
    seconds: float  # of explaining one row
    tied: bool  # it cannot be told apart from the best on these rows
    beats_random: bool


@dataclass(frozen=True, eq=False)
class Recommendation:
    """The ranking, the method to take, and the table that it comes from."""

    ranking: tuple[Choice, ...]
    board: Scoreboard
    left_out: Mapping[str, str]  # methods that were not measured, and why

    @property
    def best(self) -> str | None:
        """The cheapest of those that beat random and cannot be told apart from the best; None if there is none."""
        good = [c for c in self.ranking if c.tied and c.beats_random]
        return min(good, key=lambda c: c.seconds).method if good else None

    @property
    def rows(self) -> int:
        """The rows that count: with a score by every metric for every method, each of them once."""
        return len(_shared_rows(self.board, dict(self.left_out)))

    def to_json(self, path: Place = None) -> str:
        """The advice, the ranking, what was left out, and the table; written to a file, if there is a path."""
        ranking = [
            {key: None if value != value else value for key, value in asdict(choice).items()} for choice in self.ranking
        ]  # JSON has no NaN
        told = {
            "best": self.best, "ranking": ranking, "guarantee": GUARANTEE,
            "left_out": dict(self.left_out), "board": json.loads(self.board.to_json()),
        }  # fmt: skip
        return written(json.dumps(told, ensure_ascii=False, indent=1), path)

    def show(self) -> None:
        """Print it."""
        say(self)

    def __str__(self) -> str:
        from whence.views.recommendation import told

        return told(self)

    def __repr__(self) -> str:
        return f"Recommendation({self.best})"

    def to_html(self, path: Place = None, *, title: str = "Whence: which method to trust here") -> str:
        """A self-contained page; written to a file, if there is a path."""
        from whence.views.html import page

        return page_written(page(title, [self._repr_html_()]), path)

    def save(self, path: str | PathLike[str]) -> None:
        """Write what the name's ending says: html or json."""
        from whence.views.export import write

        write(self, path)

    def _repr_html_(self) -> str:
        from whence.views.recommendation import section

        return section(self)


def recommend(
    model: Any, data: Any, *, methods: Any = None, metrics: Any = ("comprehensiveness", "sufficiency"), rows: int = 64,
    seconds: float = 120.0, seed: int = 0, progress: bool | None = None, wrt: Any = None, labels: Any = None,
    masks: Any = None, rationales: Any = None, executor: str = "inline", workers: int | None = None,
    task: str | None = None, long: str = "error", **options: Any,
) -> Recommendation:  # fmt: skip
    """Measure the methods on some rows within a budget of seconds, and rank them by faithfulness, then cost.

    In at most 5 % of data sets is a method called better than random that is not; and in at most 5 % is one called
    worse than the best that is as good. This supposes scores of similar shape for methods that are equally good
    (docs/evaluation.md has what was simulated). Rows with equal inputs count once. The budget covers everything:
    methods that do not fit are left out, and named. `executor`, `workers`, `task` and `long` are those of
    `evaluate`.
    """
    clock, name = Clock(seconds), model
    _check(rows, seconds, seed)
    if isinstance(model, str) or executor != "inline" or task is not None or long != "error":
        from whence.runs.models import live

        model = live(model, executor, task, long)
    whole = listed(model, data, {"label": labels, "mask": masks, "rationale": rationales})
    examples = _drawn(model, whole, rows, seed, wrt)
    own = {k: v for k, v in options.items() if k not in _OF_EVALUATE}
    lines = [line for line in rankers(list(known_methods) if methods is None else methods) if line.method != "random"]
    explainer = Explainer(model, own, seed, wrt, options.get("batch_size"))
    cost, left_out = tried(examples, lines, explainer, clock)
    measured = partial(evaluate, model, metrics=metrics, seed=seed, wrt=wrt, **options)
    given = [_named(whole[example.place]) for example in examples]
    chosen, count = _affordable(lines, cost, given, measured, clock, left_out)
    elsewhere: dict[str, Any] = (
        {} if executor == "inline" else {"executor": executor, "workers": workers, "task": task, "long": long}
    )
    board = evaluate(
        name if elsewhere else model, given[:count], metrics=metrics, seed=seed, wrt=wrt, progress=progress,
        methods={line.name: _given(line) for line in chosen} | _controls(seed), **elsewhere, **options,
    )  # fmt: skip
    return Recommendation(_ranking(board, left_out), board, left_out)


def _drawn(model: Any, whole: Sequence[Mapping[str, Any]], rows: int, seed: int, wrt: Any) -> list[Example]:
    """Some of the rows that can be read, in order, none of them twice."""
    draw = torch.Generator().manual_seed(seed)
    found: dict[bytes, Example] = {}
    read = 0
    for place in torch.randperm(len(whole), generator=draw, device="cpu").tolist():
        example = read_example(model, whole[place], place, wrt)
        if isinstance(example, Example):
            read += 1
            found.setdefault(content(example), example)
        if len(found) == rows or read >= _LOOKED * rows:
            break
    if read < 2:
        raise InputError(f"There are {read} rows that can be read, which show no spread.\n  Give at least 2.")
    return sorted(found.values(), key=lambda example: example.place)


_LOOKED = 4  # times the rows that are asked for, after which no more are read to find other ones
_OF_EVALUATE = ("target", "operator", "resume", "batch_size", "controls")
_MORE = ("random 2", "random 3", "random 4")  # one draw of the control would itself be noise


def _controls(seed: int) -> dict[str, Any]:
    return {name: {"method": "random", "seed": seed + 1 + i} for i, name in enumerate(_MORE)} | {"random": None}


def _check(rows: Any, seconds: Any, seed: Any) -> None:
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 2:
        raise not_allowed("rows", rows, "at least 2: one row shows no spread")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds > 0:
        raise not_allowed("seconds", seconds, "a number above 0")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**31 - 9:
        raise not_allowed("seed", seed, "a whole number from 0")


def _named(row: Mapping[str, Any]) -> Any:
    """A row as data again, its tensors without their axis of rows."""
    inputs = row["inputs"]
    if isinstance(inputs, Tensor):
        inputs = inputs[0]
    elif isinstance(inputs, tuple):
        inputs = tuple(v[0] if isinstance(v, Tensor) and v.dim() else v for v in inputs)
    elif isinstance(inputs, Mapping):
        inputs = {k: v[0] if isinstance(v, Tensor) and v.dim() else v for k, v in inputs.items()}
    return {**row, "inputs": inputs}


def _given(line: Ranker) -> Any:
    return line.function if line.function is not None else {**(line.params or {}), "method": line.method}


def _affordable(
    lines: Sequence[Ranker], cost: Mapping[str, float], rows: Sequence[Any], measured: Any, clock: Clock,
    left_out: dict[str, str],
) -> tuple[list[Ranker], int]:  # fmt: skip
    """The cheapest methods, as many as the rest of the budget allows, one at least, and the rows that it allows."""
    cheapest = min(cost, key=lambda name: cost[name])
    line = next(line for line in lines if line.name == cheapest)
    judged = 0.0  # seconds of one method's row, by the metrics
    for some in (rows[:1], rows[: min(4, len(rows))]):  # the first time is slow
        start = clock.now()
        measured(data=some, progress=False, methods={line.name: _given(line)}, resume=None)
        judged = max(0.0, (clock.now() - start) / len(some) / 2 - cost[cheapest])
    budget, spent = _SURE * clock.left(), judged * (1 + len(_MORE)) * len(rows)
    chosen: list[str] = []
    for name in sorted(cost, key=lambda name: cost[name]):
        own = (cost[name] + judged) * len(rows)
        if chosen and spent + own > budget:
            left_out[name] = f"{own:.3g} s for {len(rows)} rows do not fit into the budget"
            continue
        chosen.append(name)
        spent += own
    count = len(rows) if spent <= budget else max(2, int(len(rows) * budget / spent))
    return [line for line in lines if line.name in chosen], min(count, len(rows))


_SURE = 0.8  # of the time that is left: times are estimates


def _ranking(board: Scoreboard, left_out: dict[str, str]) -> tuple[Choice, ...]:
    """Each method's distance from the random control, row by row, in standard deviations of each metric.

    Who is told apart is decided by `permutation`: the best is chosen anew in every resampling.
    """
    rows = _shared_rows(board, left_out)
    names = [m for m in board.methods if m not in left_out and m != "edges"]
    values = np.array(
        [[c.gain(np.array([board.results[m, c.name][r].value for r in rows])) for c in board.columns] for m in names]
    )  # (methods, metrics, rows)
    spread = np.maximum(values.std((0, 2), ddof=1), 1e-12)
    scaled = (values / spread[None, :, None]).mean(1).T  # (rows, methods)
    draws = [i for i, name in enumerate(names) if name in ("random", *_MORE)]
    order = [i for i in (-scaled.mean(0)).argsort(kind="stable").tolist() if i not in draws]
    control, own, seed = scaled[:, draws], scaled[:, order], int(board.settings["seed"])
    above = permutation.above_control(own, control, seed=seed) <= permutation.ERROR
    behind = permutation.behind_best(own, seed=seed) <= permutation.ERROR
    distance = own - control.mean(1, keepdims=True)
    low, high = bootstrap.interval(distance, seed=seed)
    return tuple(
        Choice(
            names[i], float(distance[:, place].mean()), float(low[place]), float(high[place]),
            board.seconds_per_row(names[i]), tied=not behind[place], beats_random=bool(above[place]),
        )
        for place, i in enumerate(order)
    )  # fmt: skip


def _shared_rows(board: Scoreboard, left_out: dict[str, str]) -> list[int]:
    """Rows with a score by every metric for every method; methods without a score for most rows are left out."""
    counts = {m: set.intersection(*(_rows_of(board, m, c.name) for c in board.columns)) for m in board.methods}
    most = max(len(rows) for rows in counts.values())
    if not counts["random"]:
        raise InputError("The random control has no score by these metrics.\n  Choose others: see evaluate().")
    for method, rows in counts.items():
        if len(rows) < max(1, most / 2):
            left_out[method] = f"{len(rows)} of {most} rows have a score"
    shared = set.intersection(*(rows for method, rows in counts.items() if method not in left_out))
    if not shared or not set(counts) - set(left_out) - {"random", "edges", *_MORE}:
        raise InputError("No row has a score by every method and metric.\n  See evaluate() for why.")
    return sorted(shared)


def _rows_of(board: Scoreboard, method: str, metric: str) -> set[int]:
    return {row for row, result in board.results[method, metric].items() if not math.isnan(result.value)}
