"""Rows refined together until each is good enough: which rule each takes, and passes full of what rows ask for next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

import torch
from torch import Tensor

from whence.methods.integrated.adaptive import KINKED, SMOOTH, Goal, State
from whence.methods.integrated.chords import Pieces, judge
from whence.methods.integrated.doubling import Doubled
from whence.methods.integrated.paths import Paths, Starts, contributions, slopes
from whence.rules.chords import FOLLOWED
from whence.subject import Subject
from whence.subject.batching import rows_are_independent, shortest_pass
from whence.util.progress import bar

KINKS = frozenset(  # families whose derivative jumps
    "relu relu6 leaky_relu clamp selu hardswish hardsigmoid softshrink hardshrink abs max_pool max sort rnn".split()
)
_COARSEST = 1e-5  # precision in which it can be seen whether chords are right for a model
_LARGE, _SMALL = (6, 1.0), (16, 2.0)  # pieces to begin with, and a margin: errors of few units are known less well
_FEW = 1 << 18  # bytes of a row, below which units are few
_QUICK = 1 << 20  # bytes of a row, below which some rows more in a pass cost less than another pass
_USUAL = 0.01  # the tolerance for which pieces are so many
Count = Callable[..., object]


def refined(wide: Subject, paths: Paths, goal: Goal, starts: Starts) -> list[State | Doubled | Pieces]:
    """Each row's finished integral; what a classifier says where its paths begin is put into `starts`."""
    record = wide.record
    kinked = bool(record.families & KINKS or record.unseen)
    with bar(wide.rows, wide.progress, wide.method) as count:
        pieces = _by_chords(wide, paths, goal, starts, count) if kinked and _has_chords(wide, goal) else {}
        paid = {row: pieces[row].evaluations if pieces else 0 for row in range(wide.rows)}
        eager = _size(wide, unknown=_QUICK) < _QUICK
        points: dict[int, State | Doubled] = {}
        for row in (row for row in range(wide.rows) if row not in pieces or pieces[row].broken):
            if eager and not kinked and Doubled.affordable(len(paths.weights), goal.max_steps):
                points[row] = Doubled(paths.weights, goal.max_steps)
            else:
                rule = KINKED if kinked else SMOOTH
                points[row] = State(paths.weights, rule, goal.max_steps, eager, evaluations=paid[row])
        _by_points(wide, paths, goal, points, starts, count)
    return [points.get(row) or pieces[row] for row in range(wide.rows)]


def _size(wide: Subject, unknown: float) -> float:
    """Bytes of a row; unknown where rows may be padded, as what a row gets must not hang on the rows beside it."""
    padded = "attention_mask" in wide.inputs or "ids" in wide.input_roles.values() or "ids" in wide.roles.values()
    return unknown if padded else wide.record.bytes_per_row


def _has_chords(wide: Subject, goal: Goal) -> bool:
    """Whether there are chords for every op that a first pass has met; `Pieces.broken` says where they were wrong."""
    record = wide.record
    followed = not record.unseen and record.families <= FOLLOWED and not wide.rules
    paired = wide.batch_size is None or wide.batch_size > 1  # a chord has two ends, which are rows of one pass
    return followed and paired and goal.precision <= _COARSEST and rows_are_independent(wide)


def _by_chords(wide: Subject, paths: Paths, goal: Goal, starts: Starts, count: Count) -> dict[int, Pieces]:
    pieces, margin = _SMALL if _size(wide, unknown=0) < _FEW else _LARGE
    pieces = round(pieces * max(1.0, (_USUAL / goal.reach) ** 0.5))  # a finer answer needs to see kinks closer together
    first = Pieces(paths.weights, goal.max_steps, pieces, margin, shortest_pass(wide))
    if not first.affordable:
        return {}
    states = {row: copy(first) for row in range(wide.rows)}
    while asked := [(row, chain) for row, state in states.items() for chain in state.wanted]:
        found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in asked]
        for chain, parts, scores in contributions(wide, paths, [(row, *chain) for row, chain in asked], starts):
            found[chain].append((parts, scores))
            states[asked[chain][0]].evaluations += len(scores)
        by_row: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for (row, _), some in zip(asked, found, strict=True):
            by_row.setdefault(row, []).append(_whole(some))
        alike: dict[object, list[int]] = {}
        for row in by_row:
            alike.setdefault(states[row].history, []).append(row)
        for rows in alike.values():
            judge([states[row] for row in rows], goal, [by_row[row] for row in rows])
        count(sum(states[row].done for row in by_row))
    return states


def _whole(segments: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The segments of a chain as one; a point that two of them share is there once."""
    if len(segments) == 1:
        return segments[0]
    first, *others = (scores for _, scores in segments)
    return torch.cat([parts for parts, _ in segments]), torch.cat([first, *(scores[1:] for scores in others)])


def _by_points(
    wide: Subject, paths: Paths, goal: Goal, states: dict[int, State | Doubled], starts: Starts, count: Count
) -> None:
    while asked := [(row, point) for row, state in states.items() for point in state.wanted]:
        rows = torch.tensor([row for row, _ in asked], device="cpu")
        which = torch.tensor([point[0] for _, point in asked], device="cpu")
        alpha = torch.tensor([point[1] for _, point in asked], dtype=torch.float64, device="cpu")
        for items, scores, some in slopes(wide, paths, rows, which, alpha, starts):
            for i, score, slope in zip(items.tolist(), scores.tolist(), some, strict=True):
                row, point = asked[i]
                states[row].take(point, score, slope)
        for row in dict.fromkeys(row for row, _ in asked):
            states[row] = states[row].judge(goal)
            count(int(states[row].done))
