"""Integration that knows when to stop: what is integrated along a row's lines, refined until the row is good enough.

Two schemes with one face: `wanted` are the evaluations a row asks for next, `take` hands one in, `judge` decides.
`Interpolated` takes gradients at points; it suits smooth models. `Secants` takes the rise over pieces of the line,
shared among the inputs op by op; it suits models with kinks, whose gradient jumps so often that points say little.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from whence.quadrature import panels

_NARROWEST = 2.0**-18
_SHARE = 0.5  # panels with this share of the worst one's error are halved
_SHARE_OF_PIECES = 0.65  # and pieces with this one
_OPTIMISM = 1.25  # the two interpolants differ by the coarser one's error, several times the finer one's
_LEFT = {2: 0.5, 4: 0.2}  # of the change from pieces to halves or quarters, the error left; from trained ReLU nets


@dataclass(frozen=True)
class Goal:
    """When a row is good enough."""

    tolerance: float
    reach: float  # what the model's precision allows, at least the tolerance
    max_steps: int
    per_unit: Callable[[Tensor], Tensor] | None  # sums over hidden dimensions, if there are any

    def sizes(self, vector: Tensor) -> list[float]:
        """The absolute sum over elements, and over units."""
        sums = [vector.abs().sum()]
        if self.per_unit is not None:
            sums.append(self.per_unit(vector[None]).abs().sum())
        return [float(one) for one in sums]


@dataclass
class State:
    """One row's integral so far."""

    total: Tensor = field(default_factory=lambda: torch.zeros((), device="cpu"))  # all explained values in one vector
    evaluations: int = 0
    error: float = float("inf")  # estimated, relative to the absolute sum of the answer
    gap: float = float("inf")
    before: float = 0.0  # f(x')
    wanted: list[Any] = field(default_factory=list)
    done: bool = False
    unbounded: bool = False  # the score still moves at the narrowest panel: there is no integral here

    @property
    def reached(self) -> float:
        """The tolerance that this row has come to."""
        return max(self.gap, self.error)

    def settle(self, goal: Goal, wanted: list[Any]) -> None:
        """Stop, or ask for more."""
        enough = self.gap <= goal.reach and self.error <= goal.reach
        self.done = enough or not wanted or self.evaluations + len(wanted) > goal.max_steps
        self.wanted = [] if self.done else wanted


class Interpolated(State):
    """Gradients at nodes; panels integrate the interpolant through the 6 nodes around, and through 4 for comparison."""

    def __init__(self, weights: tuple[float, ...]) -> None:
        super().__init__()
        self.weights = weights
        self.nodes: list[dict[float, tuple[float, Tensor]]] = [{} for _ in weights]
        self.wanted = [(line, alpha) for line in range(len(weights)) for alpha in (0.0, 0.25, 0.5, 0.75, 1.0)]

    def take(self, item: tuple[int, float], score: float, found: Tensor) -> None:
        line, alpha = item
        self.nodes[line][alpha] = (score, found)
        self.evaluations += 1

    def ends(self) -> tuple[float, float]:
        """f(x) and the mean f(x')."""
        rises = [w * (line[1.0][0] - line[0.0][0]) for w, line in zip(self.weights, self.nodes, strict=True)]
        return self.nodes[-1][1.0][0], self.nodes[-1][1.0][0] - sum(rises)

    def judge(self, goal: Goal) -> None:
        pieces, errors, residuals, parts = [], [], [], []
        for line, weight in enumerate(self.weights):
            alphas = sorted(self.nodes[line])
            slopes = torch.stack([self.nodes[line][a][1] for a in alphas])  # (nodes, inputs)
            scores = torch.tensor([self.nodes[line][a][0] for a in alphas], dtype=torch.float64, device=slopes.device)
            fine = torch.from_numpy(panels(alphas, 6)).to(slopes) * weight
            apart = fine - torch.from_numpy(panels(alphas, 4)).to(slopes) * weight
            pieces += [(line, a, b) for a, b in pairwise(alphas)]
            residuals += (scores.diff() * weight - (fine @ slopes.sum(1)).double()).tolist()
            parts.append(fine.sum(0) @ slopes)
            errors += self._errors(goal, apart, slopes)
        self.total = torch.stack(parts).sum(0)
        sizes = goal.sizes(self.total)
        score, self.before = self.ends()
        scale = size_of(score, self.before)
        relative = [_relative(error, sizes) / _OPTIMISM for error in errors]
        self.error, self.gap = sum(relative), abs(sum(residuals)) / scale
        worst = [max(e, abs(r) / scale) for e, r in zip(relative, residuals, strict=True)]
        self.settle(goal, self.halves(pieces, worst))
        if self.done:
            narrow = [w for (_, a, b), w in zip(pieces, worst, strict=True) if a == 0 and b <= _NARROWEST]
            self.unbounded = self.reached > goal.reach and max(narrow, default=0.0) > goal.reach
            self.nodes = []

    @staticmethod
    def _errors(goal: Goal, apart: Tensor, slopes: Tensor) -> list[list[float]]:
        """Each panel's difference between the interpolants, by element and by unit."""
        sums = [(apart @ slopes).abs().sum(1)]
        if goal.per_unit is not None:
            sums.append((apart @ goal.per_unit(slopes)).abs().sum(1))
        return torch.stack(sums, 1).tolist()

    def halves(self, pieces: list[tuple[int, float, float]], worst: list[float]) -> list[tuple[int, float]]:
        limit = _SHARE * max(worst)
        return [
            (line, (a + b) / 2)
            for (line, a, b), w in zip(pieces, worst, strict=True)
            if w >= limit and b - a > _NARROWEST
        ]


Piece = tuple[int, float, float]  # line, from, to


@dataclass(frozen=True)
class Leaf:
    """The shares of one piece's rise, and what its error is thought to be: a part of the change that halving made."""

    rise: float
    shares: Tensor
    change: Tensor | None = None
    part: float = 0.0
    size: float = float("inf")  # of its error, relative to the answer


class Secants(State):
    """Shares of the rise over pieces of the line; a piece is compared with its halves or quarters, which replace it."""

    def __init__(self, weights: tuple[float, ...], score: float, pieces: int = 4) -> None:
        super().__init__()
        self.weights = weights
        self.score = score  # f(x)
        self.leaves: dict[Piece, Leaf] = {}
        self.split: dict[Piece, list[Piece]] = {
            (line, 0.0, 1.0): [(line, i / pieces, (i + 1) / pieces) for i in range(pieces)]
            for line in range(len(weights))
        }
        self.wanted = [piece for parts in self.split.values() for piece in parts]

    def take(self, item: Piece, rise: float, found: Tensor) -> None:
        weight = self.weights[item[0]]
        self.leaves[item] = Leaf(rise * weight, found * weight)
        self.evaluations += 1

    def judge(self, goal: Goal) -> None:
        parents = {piece: self.leaves.pop(piece, None) for piece in self.split}
        self.total = torch.stack([leaf.shares for leaf in self.leaves.values()]).sum(0)
        sizes = goal.sizes(self.total)
        for piece, parent in parents.items():
            if parent is not None:
                self._compare(goal, sizes, parent, self.split[piece])
        rise = sum(leaf.rise for leaf in self.leaves.values())
        self.before = self.score - rise
        self.gap = abs(rise - float(self.total.double().sum())) / size_of(self.score, self.before)
        self.error = self._estimate(goal, sizes)
        limit = _SHARE_OF_PIECES * max(leaf.size for leaf in self.leaves.values())
        worst = [p for p, leaf in self.leaves.items() if leaf.size >= limit and p[2] - p[1] > _NARROWEST]
        count = 4 if 4 * goal.reach < self.error < float("inf") else 2
        self.split = {piece: _parts(piece, count) for piece in worst}
        self.settle(goal, [part for parts in self.split.values() for part in parts])
        if self.done:
            self.leaves = {}

    def _compare(self, goal: Goal, sizes: list[float], parent: Leaf, parts: list[Piece]) -> None:
        change = torch.stack([self.leaves[part].shares for part in parts]).sum(0) - parent.shares
        part = _LEFT[len(parts)] / len(parts)
        size = part * _relative(goal.sizes(change), sizes)
        for piece in parts:
            leaf = self.leaves[piece]
            self.leaves[piece] = Leaf(leaf.rise, leaf.shares, change, part, size)

    def _estimate(self, goal: Goal, sizes: list[float]) -> float:
        """Errors of pieces partly cancel: what is left of their sum, but no less than independent ones would leave."""
        if any(leaf.change is None for leaf in self.leaves.values()):
            return float("inf")
        total = sum(leaf.part * leaf.change for leaf in self.leaves.values() if leaf.change is not None)
        assert isinstance(total, Tensor)
        groups = len({id(leaf.change) for leaf in self.leaves.values()})
        apart = sum(leaf.size for leaf in self.leaves.values()) / max(1.0, groups**0.5 - 1)
        return max(_relative(goal.sizes(total), sizes), apart)


def _parts(piece: Piece, count: int) -> list[Piece]:
    line, a, b = piece
    edges = [a + (b - a) * i / count for i in range(count)] + [b]
    return [(line, start, end) for start, end in pairwise(edges)]


def _relative(sizes: list[float], of: list[float]) -> float:
    """An error relative to the answer, by element or by unit, whichever is worse."""
    ratios = (e / whole if whole > 0 else (0.0 if e == 0 else float("inf")) for e, whole in zip(sizes, of, strict=True))
    return max(ratios)


def size_of(score: float, before: float) -> float:
    """What a gap is relative to: Δf, and a tenth of the scores where Δf is next to nothing."""
    return max(abs(score - before), 0.1 * max(abs(score), abs(before))) or 1.0
