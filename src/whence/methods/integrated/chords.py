"""Integration by chords: along a path, each op of a network with kinks takes its mean slope from point to point.

Within a piece of the path, `rules/chords` finds for every unit how long it is open; what is missed is that units which
switch in the same piece know of each other. That error falls with the power 3/2 of the pieces' width or faster (where
gradients at points alone have 1), and what a piece and its parts differ by tells how large it is.
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
_AIM = 0.85  # of the tolerance, for which pieces are cut
_ROUNDING = 1e3  # times the precision: more than that of the answer's absolute sum is not lost by rounding


Span = tuple[int, float, float]  # path, from, to


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
    scheme: str = "chords"
    total: Tensor = field(default_factory=lambda: torch.zeros((), device="cpu"))
    evaluations: int = 0
    error: float = float("inf")
    gap: float = float("inf")
    before: float = 0.0  # f(x')
    wanted: list[Chain] = field(default_factory=list)
    done: bool = False
    broken: bool = False  # contributions do not sum to the score's rise: not a model for chords
    unbounded: bool = False

    _spans: tuple[Span, ...] = ()
    _parts: Tensor = field(default_factory=lambda: torch.zeros((0, 0), device="cpu"))  # (pieces, inputs)
    _group: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long, device="cpu"))  # of each piece
    _errors: Tensor = field(default_factory=lambda: torch.zeros((0, 0), device="cpu"))  # (groups, inputs)
    _many: Tensor = field(
        default_factory=lambda: torch.zeros(0, dtype=torch.long, device="cpu")
    )  # pieces of each group
    _rise: float = 0.0
    _scale: float = 1.0
    _cuts: tuple[int, ...] = ()  # how many parts each piece was asked to be cut in
    _planned: int = 0  # evaluations, without those of points that two passes share

    def __post_init__(self) -> None:
        paths = len(self.weights)
        coarse = max(1, min(self.start, 2 * self.start // paths, (self.max_steps // paths - 2) // (1 + _PARTS)))
        self._spans = tuple((path, i / coarse, (i + 1) / coarse) for path in range(paths) for i in range(coarse))
        self._cuts = (_PARTS,) * len(self._spans)
        whole = [Chain(path, tuple(_points(0.0, 1.0, coarse))) for path in range(paths)]
        self.wanted = [*whole, *_chains(self._spans, self._cuts)]

    def judge(self, goal: Goal, found: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Take what the wanted chains gave, contributions (pieces, inputs) and scores (points,), and stop or go on."""
        self._planned += sum(len(chain.alphas) for chain in self.wanted)
        weighted = [parts * self.weights[chain.path] for chain, (parts, _) in zip(self.wanted, found, strict=True)]
        if not len(self._parts):
            paths = len(self.weights)
            self._parts = torch.cat(weighted[:paths])
            self._score(goal, found[:paths])
            weighted = weighted[paths:]
        self._check(goal, found)
        if self.broken:
            self.wanted = []
            return
        self._replace(torch.cat(weighted))
        self.total = self._parts.sum(0)
        self.gap = abs(self._rise - float(self.total.double().sum())) / self._scale
        sizes, seen = self._sizes(goal)
        seen *= self.margin
        self.error = max(seen * (1 + _FEW / _count(sizes)), _SAID * goal.reach)
        self.done = self.gap <= goal.reach and self.error <= goal.reach
        if not self.done:
            self._cuts = self._allotted(goal, sizes, seen * (1 + _FEW / len(sizes)))
            self.wanted = list(_chains(self._spans, self._cuts))
            self.done = not self.wanted
        if self.done:
            self.wanted = []
            self._parts = self._errors = self.total.new_zeros(0)

    def _score(self, goal: Goal, found: Sequence[tuple[Tensor, Tensor]]) -> None:
        """f(x), f(x'), and what gaps are relative to."""
        scores = [scores.double() for _, scores in found]
        self._rise = sum(w * float(s[-1] - s[0]) for w, s in zip(self.weights, scores, strict=True))
        after = scores[-1][-1]
        self.before = float(after) - self._rise
        self._scale = float(score_scale(after, after - self._rise)) or 1.0

    def _check(self, goal: Goal, found: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Whether contributions sum to the score's rise on every piece."""
        parts = torch.cat([parts for parts, _ in found])
        rises = torch.cat([scores.double().diff() for _, scores in found])
        height = max(float(scores.abs().max()) for _, scores in found)
        sizes = parts.abs().sum(1).double()
        missed = (rises - parts.sum(1).double()).abs()
        allowed = _ROUNDING * goal.precision * (float(sizes.sum()) + height)
        self.broken = not float(missed.sum()) <= allowed

    def _replace(self, parts: Tensor) -> None:
        """Put the parts of pieces in their place; what a piece differs from its parts by is their error."""
        where = [i for i, count in enumerate(self._cuts) if count > 1]
        many = torch.tensor([self._cuts[i] for i in where], device="cpu")
        owner = torch.arange(len(where), device="cpu").repeat_interleave(many)
        sums = parts.new_zeros(len(where), parts.shape[1]).index_add_(0, owner.to(parts.device), parts)
        whole = len(where) == len(self._cuts)
        errors = (self._parts if whole else self._parts[where]) - sums
        errors /= (many.to(parts) ** _ORDER - 1)[:, None]
        if whole:
            self._parts, self._errors, self._many, self._group = parts, errors, many, owner
        else:
            counts = torch.tensor(self._cuts, device="cpu")
            first = torch.where(counts > 1, len(self._parts) + (counts * (counts > 1)).cumsum(0) - counts, 0)
            order = [
                n
                for i, count in enumerate(self._cuts)
                for n in (range(int(first[i]), int(first[i]) + count) if count > 1 else (i,))
            ]
            group = torch.cat([self._group, len(self._many) + owner])
            self._parts, self._group = torch.cat([self._parts, parts])[order], group[order]
            self._errors, self._many = torch.cat([self._errors, errors]), torch.cat([self._many, many])
        self._spans = _cut(self._spans, self._cuts)

    def _sizes(self, goal: Goal) -> tuple[Tensor, float]:
        """The error of each piece and of all together, relative to the answer: by element or unit, what is worse."""
        left = (torch.bincount(self._group, minlength=len(self._many)) / self._many).to(self._errors)
        each, whole = [], []
        for errors, answer in zip(goal.views(self._errors), goal.views(self.total[None]), strict=True):
            size = float(answer.abs().sum())
            sizes = errors.abs().sum(1).double().cpu()
            both = float((left @ errors.square()).sqrt().sum())
            each.append(sizes / size if size > 0 else sizes)
            whole.append(both / size if size > 0 else (math.inf if both > 0 else 0.0))
        return (torch.stack(each).amax(0) / self._many.sqrt())[self._group], max(whole)

    def _allotted(self, goal: Goal, sizes: Tensor, error: float) -> tuple[int, ...]:
        """In how many parts to cut each piece, such that all together come within the tolerance at the least cost.

        With errors that fall as parts^−p and add like those of a random walk, the optimum cuts a piece of error e in
        proportion to e^(2/(2p+1)).
        """
        aim, room = _AIM * goal.reach / max(error, goal.reach), self.max_steps - self._planned
        share = sizes ** (2 / (2 * _SLOWLY + 1))
        whole, cuts = float(sizes.square().sum()), [1] * len(sizes)
        scale = 1.0 / max(float(share.max()), 1e-300)
        for _ in range(64):
            wanted = (share * scale).round().clamp(1, _MOST).long()
            if (cost := _cost(wanted.tolist())) > room:
                break
            cuts = wanted.tolist()
            rest = float((sizes.square() * wanted.double() ** (-2 * _SLOWLY)).sum())
            if cost and (rest <= aim**2 * whole or int(wanted.min()) == _MOST):
                break
            scale *= 1.1
        return tuple(cuts)


def _count(sizes: Tensor) -> float:
    """How many of them matter: n where n are alike, 1 where one is much larger than all others."""
    return float(sizes.sum() ** 2 / sizes.square().sum().clamp(min=1e-300)) or 1.0


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
    """Points of the chains that cut pieces so, at most."""
    return sum(count for count in cuts if count > 1) + sum(b > 1 and a == 1 for a, b in pairwise([1, *cuts]))
