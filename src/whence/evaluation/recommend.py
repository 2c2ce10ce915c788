"""`whence.recommend`: which method to trust on this model and these rows, with the evidence."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from whence.errors import InputError, MethodError
from whence.evaluation.answers.explanations import Explainer, Ranker, rankers, scores_or_error
from whence.evaluation.answers.logits import of_examples
from whence.evaluation.data import listed
from whence.evaluation.evaluate import evaluate
from whence.evaluation.examples import Example, read_example
from whence.evaluation.scoreboard import Scoreboard, interval, surely_above
from whence.methods import methods as known_methods
from whence.util.checks import not_allowed
from whence.util.files import Place, page_written, written
from whence.util.terminal import say

FEW = 8  # rows, below which a bootstrap says nothing
_TRIED, _SLOW = 8, 2.0  # rows that methods are tried on; seconds a row after which nothing more is tried


@dataclass(frozen=True)
class Choice:
    """A method's place in the ranking."""

    method: str
    faithfulness: float  # mean over metrics, in standard deviations above the random control
    low: float
    high: float
    seconds: float  # of explaining one row
    tied: bool  # it cannot be told from the best on these rows
    beats_random: bool


@dataclass(frozen=True, eq=False)
class Recommendation:
    """The ranking, the method to take, and the table that it comes from."""

    ranking: tuple[Choice, ...]
    board: Scoreboard
    left_out: Mapping[str, str]  # methods that were not measured, and why

    @property
    def best(self) -> str | None:
        """The cheapest of those which beat random and cannot be told from the most faithful; None if there is none."""
        good = [c for c in self.ranking if c.tied and c.beats_random]
        return min(good, key=lambda c: c.seconds).method if good else None

    def to_json(self, path: Place = None) -> str:
        """The advice, the ranking, what was left out, and the table; written to a file, if there is a path."""
        told = {
            "best": self.best, "ranking": [asdict(choice) for choice in self.ranking],
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
    masks: Any = None, rationales: Any = None, **options: Any,
) -> Recommendation:  # fmt: skip
    """Measure the methods on some rows within a budget of seconds, and rank them by faithfulness, then cost.

    Every method is tried on a few rows first; those that would not fit into the budget are left out, and named.
    """
    _check(rows, seconds, seed)
    whole = listed(model, data, {"label": labels, "mask": masks, "rationale": rationales})
    draw = torch.Generator().manual_seed(seed)
    order = sorted(torch.randperm(len(whole), generator=draw, device="cpu")[:rows].tolist())
    examples = [
        example for place in order if isinstance(example := read_example(model, whole[place], place, wrt), Example)
    ]
    if len(examples) < 2:
        raise InputError(f"There are {len(examples)} rows that can be read, which show no spread.\n  Give at least 2.")
    own = {k: v for k, v in options.items() if k not in _OF_EVALUATE}
    lines = [line for line in rankers(list(known_methods) if methods is None else methods) if line.method != "random"]
    cost, left_out = _tried(examples, lines, Explainer(model, own, seed, wrt))
    chosen = _affordable(lines, cost, seconds / len(examples), left_out)
    board = evaluate(
        model, [_named(whole[example.place]) for example in examples], metrics=metrics, seed=seed, progress=progress,
        wrt=wrt, methods={line.name: _given(line) for line in chosen} | _controls(seed), **options,
    )  # fmt: skip
    return Recommendation(_ranking(board, left_out), board, left_out)


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


def _tried(
    examples: Sequence[Example], lines: Sequence[Ranker], explainer: Explainer
) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds that each method takes for a row, and why some do not work."""
    scored = ((example, logits) for example in examples if (logits := _logits(example)) is not None)
    some = list(islice(scored, _TRIED))
    if not some:
        raise InputError("The model has no score for any of the rows.\n  See evaluate() for why.")
    examples, targets = [example for example, _ in some], [int(logits.argmax()) for _, logits in some]
    cost: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for line in lines:
        for count in (1, len(examples)):  # the first time is slow, for the first row alone
            start = time.perf_counter()
            found = explainer.of_rows(line, examples[:count], targets[:count])
            cost[line.name] = (time.perf_counter() - start) / count
            if isinstance(found[0], Exception) or cost[line.name] > _SLOW:
                break
        scores = scores_or_error(examples[0], found[0])
        if isinstance(scores, Exception):
            left_out[line.name] = str(scores).split("\n")[0]
            del cost[line.name]
    if not cost:
        raise MethodError(f"None of the methods works here. The first: {next(iter(left_out.values()))}")
    return cost, left_out


def _logits(example: Example) -> Tensor | None:
    """A row's logits; rows without are left for `evaluate` to report."""
    try:
        return of_examples([example], None)[0]
    except Exception:
        return None


def _affordable(
    lines: Sequence[Ranker], cost: Mapping[str, float], budget: float, left_out: dict[str, str]
) -> list[Ranker]:
    """The cheapest methods, as many as a row's budget allows; one at least."""
    spent = 0.0
    chosen: list[str] = []
    for name in sorted(cost, key=cost.__getitem__):
        spent += cost[name]
        if spent > budget and chosen:
            left_out[name] = f"{cost[name]:.2g} s a row do not fit into the budget: give seconds= more"
        else:
            chosen.append(name)
    return [line for line in lines if line.name in chosen]


def _ranking(board: Scoreboard, left_out: dict[str, str]) -> tuple[Choice, ...]:
    """Each method's distance from the random control, row by row, in standard deviations of each metric.

    Many methods are compared, so differences count only beyond what the largest of so many would be by chance.
    """
    rows = _shared_rows(board, left_out)
    names = [m for m in board.methods if m not in left_out and m != "edges"]
    values = torch.tensor(
        [[[board.results[m, c.name][r].value for r in rows] for c in board.columns] for m in names],
        dtype=torch.float64,
        device="cpu",
    )  # (methods, metrics, rows)
    signs = torch.tensor(
        [1.0 if c.better == "higher" else -1.0 for c in board.columns], dtype=torch.float64, device="cpu"
    )
    spread = values.std((0, 2)).clamp(min=1e-12)
    draws = [i for i, name in enumerate(names) if name in ("random", *_MORE)]
    scaled = (values * (signs / spread)[None, :, None]).mean(1)  # (methods, rows)
    control = scaled[draws].mean(0)
    order = [i for i in scaled.mean(1).argsort(descending=True, stable=True).tolist() if i not in draws]
    distance = scaled[order] - control
    above, behind = surely_above(distance), surely_above(distance[0] - distance)
    enough = len(rows) >= FEW
    return tuple(
        Choice(
            names[i], float(distance[place].mean()), *interval(distance[place]), board.seconds_per_row(names[i]),
            tied=not (enough and bool(behind[place])), beats_random=enough and bool(above[place]),
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
        if len(rows) < max(2, most / 2):
            left_out[method] = f"{len(rows)} of {most} rows have a score"
    shared = set.intersection(*(rows for method, rows in counts.items() if method not in left_out))
    if len(shared) < 2 or not set(counts) - set(left_out) - {"random", "edges", *_MORE}:
        raise InputError("Fewer than 2 rows have a score by every method and metric.\n  See evaluate() for why.")
    return sorted(shared)


def _rows_of(board: Scoreboard, method: str, metric: str) -> set[int]:
    return {row for row, result in board.results[method, metric].items() if not math.isnan(result.value)}
