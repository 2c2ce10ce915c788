"""Which methods a table tells from the best, and ranks with the set of ranks that the rows allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from whence.evaluation import permutation


def part(board: Any, methods: Sequence[str] | None = None, metrics: Sequence[str] | None = None) -> Any:
    """Some lines and columns of a scoreboard."""
    return replace(
        board,
        methods=tuple(m for m in board.methods if methods is None or m in methods),
        columns=tuple(c for c in board.columns if metrics is None or c.name in metrics),
    )


def leaders(board: Any, metric: str) -> list[str]:
    """The methods that the rows do not tell from the best, best first: all of them hold it in 95 % of data sets."""
    names, gains, weights = board.gains(metric)
    if len(gains) < 2:
        return list(names)
    left = permutation.behind_best(gains, weights, int(board.settings["seed"])) > permutation.ERROR
    mean = weights @ gains / weights.sum()
    return [names[i] for i in (-mean).argsort(kind="stable") if left[i]]


def verdicts(board: Any, metrics: Sequence[str] | None = None) -> str:
    """A sentence for each metric: which methods may be the best."""
    lines = []
    for metric in metrics or board.metrics:
        found = leaders(board, metric)
        best = board.best(metric)
        others = [name for name in found if name != best]
        beside = (
            f"; not distinguishable from it: {', '.join(others)}" if others else ", distinguishable from all others"
        )
        lines.append(f"- {metric}: the best is {best}{beside}.")
    return "\n".join(lines)


def better(scores: np.ndarray[Any, Any], weights: np.ndarray[Any, Any], seed: int = 0) -> np.ndarray[Any, Any]:
    """Whether method a is shown to be better than method b, (a, b); all pairs are tested together."""
    count = scores.shape[1]
    mean = weights @ scores / weights.sum()
    found = np.zeros((count, count), bool)
    p, _ = permutation.pairs(scores, weights, seed)
    for k, (a, b) in enumerate(zip(*np.triu_indices(count, 1), strict=True)):
        if p[k] <= permutation.ERROR:
            found[(a, b) if mean[a] > mean[b] else (b, a)] = True
    return found


def ranks(scores: np.ndarray[Any, Any], weights: np.ndarray[Any, Any], seed: int = 0) -> list[tuple[int, int, int]]:
    """Each method's rank, and the lowest and highest that it may have, of scores (rows, methods), more is better.

    A method may have any rank from one more than the methods that are shown to be better, to the number of methods less
    those that are shown to be worse; all pairs are tested together (Mogstad et al. 2024): with 95 % confidence all
    methods' ranks lie in their sets.
    """
    count = scores.shape[1]
    mean = weights @ scores / weights.sum()
    order = (-mean).argsort(kind="stable")
    place = np.empty(count, int)
    place[order] = np.arange(1, count + 1)
    told = better(scores, weights, seed)
    return [(int(place[i]), 1 + int(told[:, i].sum()), count - int(told[i].sum())) for i in range(count)]
