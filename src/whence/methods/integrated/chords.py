"""Integration by chords: along a path, each op of a network with kinks takes its mean slope from point to point.

Within a piece of the path, `rules/chords` finds for every unit how long it is open; what is missed is that units which
switch in the same piece know of each other. That error falls with the power 3/2 of the pieces' width or faster (where
gradients at points alone have 1), and what a piece and its parts differ by tells how large it is. Rows whose pieces
were cut alike, as all are at first, are judged together.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from whence.methods.integrated.adaptive import Goal
from whence.util.stats import score_scale

_PARTS = 3  # of each piece to begin with
_MOST = 8  # parts of a piece in one round
_ORDER = 1.5  # the power of the width with which errors fall, as estimates take it
_SLOWLY = 1.35  # and as plans take it: with very many kinks it is not yet 3/2
_FEW = 8.0  # errors in few places are known less well: this, divided by their number, is added to the estimate
_SAID = 0.25  # of the tolerance asked for: no finer error than this is claimed
_AIM = 0.75  # of the tolerance, for which pieces are cut
_ROUNDING = 1e3  # times the precision: more than that of the answer's absolute sum is not lost by rounding
_SPARE = 2  # evaluations of each path that are kept for another rule, should chords be wrong


Span = tuple[int, float, float]  # path, from, to
Found = Sequence[tuple[Tensor, Tensor]]  # for each wanted chain, contributions (pieces, inputs) and scores (points,)


class Chain(NamedTuple):
    """Neighbouring points of one path."""

    path: int
    alphas: tuple[float, ...]


@dataclass
class Pieces:
    """One row's integral so far."""

    weights: tuple[float, ...]  # of its paths
    max_steps: int
    start: int  # pieces of a path to begin with
    margin: float = 1.0  # times the error that is seen: what is said of it
    shortest: int = 2  # points in one pass at least, where there are so many: each further pass costs one more
    scheme: str = "chords"
    total: Tensor = field(default_factory=lambda: torch.zeros((), device="cpu"))
    evaluations: int = 0
    error: float = float("inf")
    gap: float = float("inf")
    before: float = 0.0  # f(x')
    wanted: tuple[Chain, ...] = ()
    done: bool = False
    broken: bool = False  # contributions do not sum to the score's rise: not a model for chords
    unbounded: bool = False

    history: tuple[tuple[int, ...], ...] = ()  # how many parts each piece was cut in, round by round
    _spans: tuple[Span, ...] = ()
    _parts: Tensor = field(default_factory=lambda: torch.zeros((0, 0), device="cpu"))  # (pieces, inputs)
    _group: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long, device="cpu"))  # of each piece
    _errors: Tensor = field(default_factory=lambda: torch.zeros((0, 0), device="cpu"))  # (groups, inputs)
    _many: Tensor = field(
        default_factory=lambda: torch.zeros(0, dtype=torch.long, device="cpu")
    )  # pieces of each group
    _rise: float = 0.0
    _scale: float = 1.0
    _planned: int = 0  # evaluations at most

    def __post_init__(self) -> None:
        paths = len(self.weights)
        coarse = max(1, min(self.start, 2 * self.start // paths))
        while coarse > 1 and self.paid(paths * (coarse + 1 + _PARTS * coarse + 1)) > self.room:
            coarse -= 1
        self._spans = tuple((path, i / coarse, (i + 1) / coarse) for path in range(paths) for i in range(coarse))
        whole = [Chain(path, tuple(_points(0.0, 1.0, coarse))) for path in range(paths)]
        self._ask((_PARTS,) * len(self._spans), whole)

    @property
    def room(self) -> int:
        """The evaluations that are left."""
        return self.max_steps - _SPARE * len(self.weights) - self._planned

    @property
    def affordable(self) -> bool:
        """Whether what is wanted is within the limit."""
        return self.room >= 0

    def paid(self, points: int) -> int:
        """What so many points cost at most, where a chain is cut between two passes and its point is needed twice."""
        return points + 1 + points // max(1, self.shortest // 2)

    def _ask(self, cuts: tuple[int, ...], also: Sequence[Chain] = ()) -> None:
        """Cut the pieces so."""
        self.wanted = (*also, *_chains(self._spans, cuts))
        self.history += (cuts,)
        if self.wanted:
            self._planned += self.paid(sum(len(chain.alphas) for chain in self.wanted))


@dataclass(eq=False)
class _Rows:
    """Rows whose pieces were cut alike, in tensors whose first dimension is the row."""

    parts: Tensor  # (rows, pieces, inputs)
    errors: Tensor  # (rows, groups, inputs)
    group: Tensor  # (pieces,)
    many: Tensor  # (groups,)


def judge(states: Sequence[Pieces], goal: Goal, found: Sequence[Found]) -> None:
    """Take what the wanted chains of rows with one history gave, and have each row stop or go on."""
    one, paths = states[0], len(states[0].weights)
    chains = [_stacked([row[i] for row in found]) for i in range(len(one.wanted))]
    weighted = [
        parts if one.weights[chain.path] == 1 else parts * one.weights[chain.path]
        for chain, (parts, _) in zip(one.wanted, chains, strict=True)
    ]
    first = len(one.history) == 1
    if first:
        _begin(states, [scores for _, scores in chains[:paths]])
        old = _Rows(_joined(weighted[:paths]), one._errors, one._group, one._many)
        weighted = weighted[paths:]
    else:
        old = _Rows(_rowwise([s._parts for s in states]), _rowwise([s._errors for s in states]), one._group, one._many)
    broken = _broken(goal, chains)
    rows = _replaced(old, one.history[-1], _joined(weighted))
    totals = rows.parts.sum(1)
    rises, scales = torch.tensor([(s._rise, s._scale) for s in states], dtype=torch.float64, device="cpu").T
    gaps = ((rises - totals.double().sum(1).cpu()).abs() / scales).tolist()
    sizes, seen = _sizes(goal, rows, totals)
    counts = _counts(sizes)
    spans = _cut(one._spans, one.history[-1])
    for row, state in enumerate(states):
        state.wanted = ()
        state.broken = broken[row]
        if state.broken:
            continue
        state.total, state.gap, state._spans = totals[row], gaps[row], spans
        visible = seen[row] * state.margin
        state.error = max(visible * (1 + _FEW / counts[row]), _SAID * goal.reach)
        state.done = state.gap <= goal.reach and state.error <= goal.reach
        if not state.done:
            state._parts, state._errors, state._group, state._many = (
                rows.parts[row], rows.errors[row], rows.group, rows.many,
            )  # fmt: skip
            state._ask(_allotted(state, goal, sizes[row], visible))
            state.done = not state.wanted
        if state.done:
            state._parts = state._errors = totals.new_zeros(0)


def _stacked(rows: Found) -> tuple[Tensor, Tensor]:
    return _rowwise([parts for parts, _ in rows]), _rowwise([scores for _, scores in rows]).double()


def _rowwise(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(list(tensors))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), 1)


def _begin(states: Sequence[Pieces], scores: Sequence[Tensor]) -> None:
    """f(x), f(x'), and what gaps are relative to."""
    weights = states[0].weights
    rises = torch.stack([w * (s[:, -1] - s[:, 0]) for w, s in zip(weights, scores, strict=True)]).sum(0)
    after = scores[-1][:, -1]
    lines = torch.stack([rises, after - rises, score_scale(after, after - rises)]).tolist()
    for state, rise, before, scale in zip(states, *lines, strict=True):
        state._rise, state.before, state._scale = rise, before, scale or 1.0


def _broken(goal: Goal, chains: Found) -> list[bool]:
    """Whether contributions do not sum to the score's rise on every piece."""
    parts, scores = _joined([parts for parts, _ in chains]), [scores for _, scores in chains]
    rises = _joined([s.diff(dim=1) for s in scores])
    missed = (rises - parts.sum(2).double()).abs().sum(1)
    allowed = parts.abs().sum((1, 2)).double() + _joined(scores).abs().amax(1)
    return (~(missed <= _ROUNDING * goal.precision * allowed)).tolist()


def _replaced(old: _Rows, cuts: tuple[int, ...], parts: Tensor) -> _Rows:
    """The parts of pieces in their place; what a piece differs from its parts by is their error."""
    where = [i for i, count in enumerate(cuts) if count > 1]
    many = torch.tensor([cuts[i] for i in where], device="cpu")
    owner = torch.arange(len(where), device="cpu").repeat_interleave(many)
    whole = len(where) == len(cuts)
    if len(set(cuts)) == 1:
        sums = parts.unflatten(1, (len(where), -1)).sum(2)
    else:
        sums = parts.new_zeros(len(parts), len(where), parts.shape[2]).index_add_(1, owner.to(parts.device), parts)
    errors = (old.parts if whole else old.parts[:, where]) - sums
    errors /= (many.to(parts) ** _ORDER - 1)[:, None]
    if whole:
        return _Rows(parts, errors, owner, many)
    counts = torch.tensor(cuts, device="cpu")
    first = torch.where(counts > 1, old.parts.shape[1] + (counts * (counts > 1)).cumsum(0) - counts, 0)
    order = [
        n for i, count in enumerate(cuts) for n in (range(int(first[i]), int(first[i]) + count) if count > 1 else (i,))
    ]
    group = torch.cat([old.group, len(old.many) + owner])
    return _Rows(
        torch.cat([old.parts, parts], 1)[:, order],
        torch.cat([old.errors, errors], 1),
        group[order],
        torch.cat([old.many, many]),
    )


def _sizes(goal: Goal, rows: _Rows, totals: Tensor) -> tuple[Tensor, list[float]]:
    """The error of each piece (rows, pieces) and of all together, relative to the answer: by element or unit, what is
    worse."""
    left = (torch.bincount(rows.group, minlength=len(rows.many)) / rows.many).to(rows.errors)
    each, whole = [], []
    for errors, answer in zip(goal.views(rows.errors.flatten(0, 1)), goal.views(totals), strict=True):
        by_row = errors.unflatten(0, rows.errors.shape[:2])  # (rows, groups, inputs)
        size = answer.abs().sum(1).double().cpu()  # (rows,)
        sizes = by_row.abs().sum(2).double().cpu()  # (rows, groups)
        both = torch.matmul(left, by_row.square()).sqrt().sum(1).double().cpu()
        each.append(sizes / size.where(size > 0, torch.ones_like(size))[:, None])
        unknown = torch.where(both > 0, math.inf, 0.0)
        whole.append(torch.where(size > 0, both / size, unknown))
    worst = torch.stack(each).amax(0) if len(each) > 1 else each[0]
    seen = torch.stack(whole).amax(0) if len(whole) > 1 else whole[0]
    return (worst / rows.many.sqrt())[:, rows.group], seen.tolist()


def _counts(sizes: Tensor) -> list[float]:
    """How many of each row's errors matter: n where n are alike, 1 where one is much larger than all others."""
    return [n or 1.0 for n in (sizes.sum(1) ** 2 / sizes.square().sum(1).clamp(min=1e-300)).tolist()]


def _allotted(state: Pieces, goal: Goal, sizes: Tensor, seen: float) -> tuple[int, ...]:
    """In how many parts to cut each piece, such that all together come within the tolerance at the least cost.

    With errors that fall as parts^−p and add like those of a random walk, the optimum cuts a piece of error e in
    proportion to e^(2/(2p+1)).
    """
    seen = max(seen, goal.reach)
    share = sizes ** (2 / (2 * _SLOWLY + 1))
    whole, cuts = float(sizes.square().sum()), [1] * len(sizes)
    scale = 1.0 / max(float(share.max()), 1e-300)
    for _ in range(64):
        wanted = (share * scale).round().clamp(1, _MOST).long()
        if (cost := _cost(wanted.tolist())) and state.paid(cost + len(state.weights) - 1) > state.room:
            break
        cuts = wanted.tolist()
        rest = float((sizes.square() * wanted.double() ** (-2 * _SLOWLY)).sum())
        expected = seen * math.sqrt(rest / whole) * (1 + _FEW / int(wanted.sum())) if whole else 0.0
        if cost and (expected <= _AIM * goal.reach or int(wanted.min()) == _MOST):
            break
        scale *= 1.1
    return tuple(cuts)


@functools.lru_cache(maxsize=64)
def _chains(spans: tuple[Span, ...], cuts: tuple[int, ...]) -> tuple[Chain, ...]:
    """The chains that cut the pieces so: neighbouring pieces are in one chain."""
    chains: list[Chain] = []
    for (path, a, b), count in zip(spans, cuts, strict=True):
        if count == 1:
            continue
        inner = tuple(_points(a, b, count)[1:])
        if chains and chains[-1].path == path and chains[-1].alphas[-1] == a:
            chains[-1] = Chain(path, chains[-1].alphas + inner)
        else:
            chains.append(Chain(path, (a, *inner)))
    return tuple(chains)


@functools.lru_cache(maxsize=64)
def _cut(spans: tuple[Span, ...], cuts: tuple[int, ...]) -> tuple[Span, ...]:
    """The pieces that come of it."""
    pairs = ((path, pairwise(_points(a, b, count))) for (path, a, b), count in zip(spans, cuts, strict=True))
    return tuple((path, *pair) for path, ends in pairs for pair in ends)


def _points(a: float, b: float, count: int) -> list[float]:
    return [a, *(a + (b - a) * i / count for i in range(1, count)), b]


def _cost(cuts: Sequence[int]) -> int:
    """Points of the chains that cut the pieces of a path so, at most."""
    return sum(count for count in cuts if count > 1) + sum(b > 1 and a == 1 for a, b in pairwise([1, *cuts]))
