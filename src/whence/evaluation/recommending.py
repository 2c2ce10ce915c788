"""`whence.recommend`: which method to trust on this model and these rows, with the evidence."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.errors import InputError, MethodError
from whence.evaluation.cases import Case, case_of, listed
from whence.evaluation.explaining import Explainer, Ranker, rankers, unit_scores
from whence.evaluation.predicting import of_cases
from whence.evaluation.run import evaluate
from whence.evaluation.scoreboard import Scoreboard, interval
from whence.methods import methods as known_methods

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
        """The cheapest of those which cannot be told from the most faithful; None if that is no better than random."""
        if not self.ranking[0].beats_random:
            return None
        return min((c for c in self.ranking if c.tied), key=lambda c: c.seconds).method

    def show(self) -> None:
        """Print it."""
        print(self)

    def __str__(self) -> str:
        from whence.views.recommendation import told

        return told(self)

    def __repr__(self) -> str:
        return f"Recommendation({self.best})"

    def to_html(self, title: str = "Whence: which method to trust here") -> str:
        """A self-contained page."""
        from whence.views.html import page

        return page(title, [self._repr_html_()])

    def _repr_html_(self) -> str:
        from whence.views.recommendation import section

        return section(self)


def recommend(
    model: Any, data: Any, *, methods: Any = None, metrics: Any = ("comprehensiveness", "sufficiency"), rows: int = 64,
    seconds: float = 120.0, seed: int = 0, progress: bool | None = None, wrt: Any = None, **options: Any,
) -> Recommendation:  # fmt: skip
    """Measure the methods on some rows within a budget of seconds, and rank them by faithfulness, then cost.

    Every method is tried on a few rows first; those that would not fit into the budget are left out, and named.
    """
    if not isinstance(rows, int) or rows < 2:
        raise InputError(f"rows={rows!r} is not allowed.\n  Give at least 2: one row shows no spread.")
    given = {name: options.pop(f"{name}s", None) for name in ("label", "mask", "rationale")}
    whole = listed(model, data, given)
    if len(whole) < 2:
        raise InputError("There is one row, which shows no spread.\n  Give at least 2.")
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))[:rows].sort().values
    some = [whole[i] for i in order.tolist()]
    cases = [case_of(model, row, place, wrt) for place, row in enumerate(some[:_TRIED])]
    lines = rankers(_every(cases[0]) if methods is None else methods)
    explainer = Explainer(model, {k: v for k, v in options.items() if k not in ("target", "operator")}, seed, wrt)
    cost, left_out = _tried(cases, lines, explainer)
    chosen = _affordable(lines, cost, seconds / len(some), left_out)
    board = evaluate(
        model, [_named(row) for row in some], methods={line.name: _given(line) for line in chosen}, metrics=metrics,
        seed=seed, progress=progress, wrt=wrt, **options,
    )  # fmt: skip
    return Recommendation(_ranking(board), board, left_out)


def _named(row: Mapping[str, Any]) -> Any:
    """A row as data again; its tensors have their axis of rows already."""
    inputs = row["inputs"]
    if isinstance(inputs, Tensor):
        inputs = inputs[0]
    elif isinstance(inputs, Mapping):
        inputs = {k: v[0] if isinstance(v, Tensor) and v.dim() else v for k, v in inputs.items()}
    return {**row, "inputs": inputs}


def _given(line: Ranker) -> Any:
    return line.function if line.function is not None else {**(line.params or {}), "method": line.method}


def _every(case: Case) -> dict[str, Any]:
    """All methods; of slopes at tokens the magnitudes, because a norm behind the embedding lets their sum vanish."""
    return {
        name: {"channels": "sum_abs"} if case.ids and entry.facts.get("slope") else None
        for name, entry in known_methods.items()
    }


def _tried(
    cases: Sequence[Case], lines: Sequence[Ranker], explainer: Explainer
) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds that each method takes for a row, and why some do not work."""
    targets = [int(logits.argmax()) for logits in of_cases(cases, None)]
    cost: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for line in lines:
        for count in (1, len(cases)):  # the first time is slow, for the first row alone
            start = time.perf_counter()
            found = explainer.of_rows(line, cases[:count], targets[:count])
            cost[line.name] = (time.perf_counter() - start) / count
            if isinstance(found[0], Exception) or cost[line.name] > _SLOW:
                break
        error = found[0] if isinstance(found[0], Exception) else _unfit(cases[0], found[0])
        if error is not None:
            left_out[line.name] = str(error).split("\n")[0]
            del cost[line.name]
    if not cost:
        raise MethodError(f"None of the methods works here. The first: {next(iter(left_out.values()))}")
    return cost, left_out


def _unfit(case: Case, found: Any) -> Exception | None:
    try:
        unit_scores(case, found)
    except Exception as error:
        return error
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


def _ranking(board: Scoreboard) -> tuple[Choice, ...]:
    """Each method's distance from the random control, row by row, in standard deviations of each metric."""
    shared = set.intersection(*(_rows_of(board, m, c.name) for m in board.methods for c in board.columns))
    if len(shared) < 2:
        raise InputError("Fewer than 2 rows have a score by every method and metric.\n  See evaluate() for why.")
    rows = sorted(shared)
    values = torch.tensor(
        [[[board.results[m, c.name][r].value for r in rows] for c in board.columns] for m in board.methods],
        dtype=torch.float64,
    )  # (methods, metrics, rows)
    signs = torch.tensor([1.0 if c.better == "higher" else -1.0 for c in board.columns], dtype=torch.float64)
    spread = values.std((0, 2)).clamp(min=1e-12)
    random = values[board.methods.index("random")].mean(1)
    distance = ((values - random[None, :, None]) * (signs / spread)[None, :, None]).mean(1)  # (methods, rows)
    means = distance.mean(1)
    order = [
        i for i in means.argsort(descending=True, stable=True).tolist() if board.methods[i] not in ("random", "edges")
    ]
    best, control = distance[order[0]], distance[board.methods.index("random")]
    enough = len(rows) >= FEW
    return tuple(
        Choice(
            board.methods[i], float(means[i]), *interval(distance[i]), _seconds(board, board.methods[i]),
            i == order[0] or not enough or interval(best - distance[i])[0] <= 0,
            enough and interval(distance[i] - control)[0] > 0,
        )
        for i in order
    )  # fmt: skip


def _rows_of(board: Scoreboard, method: str, metric: str) -> set[int]:
    return {row for row, result in board.results[method, metric].items() if not math.isnan(result.value)}


def _seconds(board: Scoreboard, method: str) -> float:
    own = board.cost[method]
    return own.get("seconds", 0.0) / max(own.get("rows", 0.0), 1.0)
