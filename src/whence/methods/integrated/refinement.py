"""Rows refined together until each is good enough: which rule each takes, and passes full of what rows ask for next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from whence.methods.integrated.adaptive import KINKED, SMOOTH, Goal, State
from whence.methods.integrated.chords import Pieces
from whence.methods.integrated.paths import Paths, contributions, slopes
from whence.rules.chords import FOLLOWED
from whence.subject import Subject
from whence.subject.batching import rows_are_independent
from whence.util.progress import bar

KINKS = frozenset(  # families whose derivative jumps
    "relu relu6 leaky_relu clamp selu hardswish hardsigmoid softshrink hardshrink abs max_pool max sort rnn".split()
)
_COARSEST = 1e-5  # precision in which it can be seen whether chords are right for a model
_LARGE, _SMALL = (6, 1.0), (16, 2.0)  # pieces to begin with, and a margin: errors of few units are known less well
_FEW = 1 << 18  # bytes of a row, below which units are few
_USUAL = 0.01  # the tolerance for which pieces are so many
Count = Callable[..., object]


def refined(wide: Subject, paths: Paths, goal: Goal) -> list[State | Pieces]:
    """Each row's finished integral."""
    record = wide.record
    kinked = bool(record.families & KINKS or record.unseen)
    with bar(wide.rows, wide.progress, wide.method) as count:
        pieces = _by_chords(wide, paths, goal, count) if kinked and _has_chords(wide, goal) else {}
        paid = {row: pieces[row].evaluations if pieces else 0 for row in range(wide.rows)}
        rule = KINKED if kinked else SMOOTH
        points = {
            row: State(paths.weights, rule, evaluations=paid[row])
            for row in range(wide.rows)
            if row not in pieces or pieces[row].broken
        }
        _by_points(wide, paths, goal, points, count)
    return [points.get(row) or pieces[row] for row in range(wide.rows)]


def _has_chords(wide: Subject, goal: Goal) -> bool:
    """Whether there are chords for every op that a first pass has met; `Pieces.broken` says where they were wrong."""
    record = wide.record
    followed = not record.unseen and record.families <= FOLLOWED and not wide.rules
    paired = wide.batch_size is None or wide.batch_size > 1  # a chord has two ends, which are rows of one pass
    return followed and paired and goal.precision <= _COARSEST and rows_are_independent(wide)


def _by_chords(wide: Subject, paths: Paths, goal: Goal, count: Count) -> dict[int, Pieces]:
    pieces, margin = _SMALL if wide.record.bytes_per_row < _FEW else _LARGE
    pieces = round(pieces * max(1.0, (_USUAL / goal.reach) ** 0.5))  # a finer answer needs to see kinks closer together
    states = {row: Pieces(paths.weights, goal.max_steps, pieces, margin) for row in range(wide.rows)}
    while asked := [(row, chain) for row, state in states.items() for chain in state.wanted]:
        found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in asked]
        for chain, parts, scores in contributions(wide, paths, [(row, *chain) for row, chain in asked]):
            found[chain].append((parts, scores))
            states[asked[chain][0]].evaluations += len(scores)
        by_row: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for (row, _), some in zip(asked, found, strict=True):
            by_row.setdefault(row, []).append(_whole(some))
        for row, whole in by_row.items():
            states[row].judge(goal, whole)
            count(int(states[row].done))
    return states


def _whole(segments: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The segments of a chain as one; a point that two of them share is there once."""
    if len(segments) == 1:
        return segments[0]
    first, *others = (scores for _, scores in segments)
    return torch.cat([parts for parts, _ in segments]), torch.cat([first, *(scores[1:] for scores in others)])


def _by_points(wide: Subject, paths: Paths, goal: Goal, states: Mapping[int, State], count: Count) -> None:
    while asked := [(row, point) for row, state in states.items() for point in state.wanted]:
        rows = torch.tensor([row for row, _ in asked], device="cpu")
        which = torch.tensor([point[0] for _, point in asked], device="cpu")
        alpha = torch.tensor([point[1] for _, point in asked], dtype=torch.float64, device="cpu")
        for i, score, slope in slopes(wide, paths, rows, which, alpha):
            row, point = asked[i]
            states[row].take(point, score, slope)
        for row in dict.fromkeys(row for row, _ in asked):
            states[row].judge(goal)
            count(int(states[row].done))
