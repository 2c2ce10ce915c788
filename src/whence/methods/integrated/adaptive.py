"""Integration that knows when to stop: gradients along a row's paths, refined until the row is good enough.

`wanted` are the points that a row asks for next, `take` hands one in, `judge` decides. How a path is integrated between
its points, and how far that may be off, is one of two rules: `smooth` for functions with many derivatives, `kinked` for
those whose gradient jumps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from whence.util.quadrature import panels
from whence.util.stats import score_scale

Point = tuple[int, float]  # path, α
Piece = tuple[int, float, float]  # path, from, to

_NARROWEST = 2.0**-18
_SHARE = 0.5  # panels with this share of the worst one's error are halved
_DWARFED = 0.1  # panels with less than this share wait, where passes are to be few
_OPTIMISM = 1.25  # the two interpolants differ by the coarser one's error, several times the finer one's
_MARGIN = 1.4  # over one standard deviation; benchmarks/certificates.py has what it was measured on
_ROUGH = (
    0.6  # of the gain from 2 points to 4, the gain from 4 to 6: above it, further points do not help as they should
)
_BLURRED = 0.01  # of a panel: tangents that rounding shifts by more do not tell where they meet
_SAID = 0.1  # of the tolerance asked for: no finer error than this is claimed


@dataclass(frozen=True)
class Goal:
    """When a row is good enough."""

    tolerance: float
    precision: float  # of the model's numbers
    max_steps: int
    per_unit: Callable[[Tensor], Tensor] | None  # sums over hidden dimensions, if there are any

    @property
    def reach(self) -> float:
        """What the model's precision allows, at least the tolerance."""
        return max(self.tolerance, 4 * self.precision)

    def reached(self, gap: float, error: float) -> float:
        """The tolerance that a row has come to; an estimate says nothing finer than a part of what was asked for."""
        return max(gap, error, _SAID * self.reach)

    def views(self, vectors: Tensor) -> list[Tensor]:
        """Vectors (n, inputs) by element, and by unit where units have hidden dimensions."""
        return [vectors] if self.per_unit is None else [vectors, self.per_unit(vectors)]


@dataclass(frozen=True, eq=False)
class Panels:
    """The integral along one path between neighbouring points."""

    parts: Tensor  # (panels, inputs)
    errors: Tensor  # (panels, inputs), how far each may be off
    unseen: Tensor  # (panels,), what the score rose by that no gradient at the ends can explain


@dataclass(frozen=True)
class Rule:
    """How a path is integrated between its points."""

    name: str
    start: int  # panels to begin with
    integrate: Callable[[Tensor, Tensor, Tensor], Panels]  # from α and scores (points,), and slopes (points, inputs)
    independent: bool  # panels err each for itself, so that their errors add like those of a random walk


# ---- the two rules ----


def _interpolated(alphas: Tensor, scores: Tensor, slopes: Tensor) -> Panels:
    """The interpolant through the 6 points around a panel, compared with the one through 4."""
    fine, coarse = (_weights(tuple(alphas.tolist()), points).to(slopes) for points in (6, 4))
    return Panels(fine @ slopes, (fine - coarse) @ slopes / _OPTIMISM, torch.zeros_like(alphas[1:]))


def _stepped(alphas: Tensor, scores: Tensor, slopes: Tensor) -> Panels:
    """The gradient of one end up to some point of the panel, and of the other end from there.

    A single kink lies where the tangents of the score at both ends meet; if they do not meet in the panel, or rounding
    decides where, the point is its middle. With many kinks the gradient is a random walk between known ends, a Brownian
    bridge, whose integral has the standard deviation width · |jump| / √12.
    """
    width, rise = alphas.diff(), scores.diff()
    along = slopes.sum(1).double().cpu()
    meeting = (rise / width - along[1:]) / (along[:-1] - along[1:])
    eps = torch.finfo(slopes.dtype).eps  # of what scores and slopes are sums of
    slack = 8 * eps * (scores.abs().max() / width + along.abs().max()) / (along[:-1] - along[1:]).abs()
    known = (slack < _BLURRED) & (meeting >= -slack) & (meeting <= 1 + slack)
    share = torch.where(known, meeting.clamp(0, 1), torch.full_like(meeting, 0.5))
    before, after = ((w * width).to(slopes)[:, None] for w in (share, 1 - share))
    parts = before * slopes[:-1] + after * slopes[1:]
    moved = slopes.diff(dim=0) * width.to(slopes)[:, None]
    unseen = (rise - parts.double().sum(1).cpu()).abs() - moved.double().abs().sum(1).cpu() / 2
    return Panels(parts, moved * (_MARGIN / math.sqrt(12)), unseen.clamp(min=0))


def _rough(alphas: Tensor, slopes: Tensor) -> bool:
    """Whether interpolants gain so little from more points that there must be kinks that nobody has told of."""
    low, middle, high = (_weights(tuple(alphas.tolist()), points).to(slopes) @ slopes for points in (2, 4, 6))
    return bool((high - middle).abs().sum() > _ROUGH * (middle - low).abs().sum())


@functools.lru_cache(maxsize=64)
def _weights(alphas: tuple[float, ...], points: int) -> Tensor:
    return torch.from_numpy(panels(alphas, points))


SMOOTH = Rule("gradients", 4, _interpolated, independent=False)
KINKED = Rule("jumps", 8, _stepped, independent=True)


def errors_of(goal: Goal, vectors: Tensor, answer: Tensor) -> list[float]:
    """The absolute sum of each vector relative to the answer's: by element or unit, what is worse."""
    found = []
    for some, whole in zip(goal.views(vectors), goal.views(answer[None]), strict=True):
        sizes, size = some.abs().sum(1).double().cpu(), whole.abs().sum().double().cpu()
        found.append(torch.where(sizes > 0, sizes / size, torch.zeros_like(sizes)))
    return [float(one) for one in torch.stack(found).amax(0)]


# ---- one row ----


@dataclass
class State:
    """One row's integral so far."""

    weights: tuple[float, ...]  # of its paths
    rule: Rule
    room: int  # evaluations at most
    eager: bool = False  # few passes before few points
    total: Tensor = field(default_factory=lambda: torch.zeros((), device="cpu"))  # all explained values in one vector
    evaluations: int = 0
    error: float = float("inf")  # estimated, relative to the absolute sum of the answer
    gap: float = float("inf")
    before: float = 0.0  # f(x')
    nodes: list[dict[float, tuple[float, Tensor]]] = field(default_factory=list)  # by path: α to score and slopes
    wanted: list[Point] = field(default_factory=list)
    done: bool = False
    unbounded: bool = False  # the score still moves at the narrowest panel: there is no integral here

    def __post_init__(self) -> None:
        self.nodes = [{} for _ in self.weights]
        paths = len(self.weights)
        start = max(1, min(self.rule.start, (self.room - self.evaluations) // paths - 1))
        self.wanted = [(path, i / start) for path in range(paths) for i in range(start + 1)]

    @property
    def scheme(self) -> str:
        return self.rule.name

    def take(self, point: Point, score: float, slopes: Tensor) -> None:
        path, alpha = point
        self.nodes[path][alpha] = (score, slopes)
        self.evaluations += 1

    def judge(self, goal: Goal) -> State:
        """Integrate what there is, and stop or ask for more."""
        pieces, parts, errors, residuals, unseen = [], [], [], [], []
        for path, weight in enumerate(self.weights):
            alphas = sorted(self.nodes[path])
            scores = torch.tensor([self.nodes[path][a][0] for a in alphas], dtype=torch.float64, device="cpu")
            slopes = torch.stack([self.nodes[path][a][1] for a in alphas])  # (points, inputs)
            integral = self.rule.integrate(torch.tensor(alphas, dtype=torch.float64, device="cpu"), scores, slopes)
            pieces += [(path, a, b) for a, b in pairwise(alphas)]
            parts.append(integral.parts.sum(0) * weight)
            errors.append(integral.errors * weight)
            residuals.append(weight * (scores.diff() - integral.parts.double().sum(1).cpu()))
            unseen.append(weight * (integral.unseen - 4 * goal.precision * scores.abs().max()).clamp(min=0))
        self.total = torch.stack(parts).sum(0)
        score, self.before = self._ends()
        scale = float(score_scale(*torch.tensor([score, self.before], dtype=torch.float64, device="cpu"))) or 1.0
        rest = torch.cat(residuals)
        self.gap = max(abs(float(rest.sum())), float(torch.cat(unseen).sum())) / scale
        each, self.error = self._errors(goal, torch.cat(errors))
        rough = self.rule is SMOOTH and self._enough(goal) and self._is_rough(goal)
        if rough and len(pieces) >= KINKED.start * len(self.weights):
            self.rule = KINKED
            return self.judge(goal)
        self._settle(goal, pieces, torch.maximum(each, rest.abs() / scale).tolist(), self._enough(goal) and not rough)
        return self

    def _enough(self, goal: Goal) -> bool:
        return self.gap <= goal.reach and self.error <= goal.reach

    def _is_rough(self, goal: Goal) -> bool:
        """Whether a path is rough, by more than what is asked for or rounding."""
        if self.error <= max(_SAID * goal.tolerance, 64 * goal.precision):
            return False
        for path in self.nodes:
            alphas = sorted(path)
            if _rough(
                torch.tensor(alphas, dtype=torch.float64, device="cpu"), torch.stack([path[a][1] for a in alphas])
            ):
                return True
        return False

    def _ends(self) -> tuple[float, float]:
        """f(x) and the mean f(x')."""
        rises = [w * (path[1.0][0] - path[0.0][0]) for w, path in zip(self.weights, self.nodes, strict=True)]
        return self.nodes[-1][1.0][0], self.nodes[-1][1.0][0] - sum(rises)

    def _errors(self, goal: Goal, errors: Tensor) -> tuple[Tensor, float]:
        """The error of each panel and of all together, relative to the answer: by element or unit, what is worse."""
        each, whole = [], []
        for vectors, answer in zip(goal.views(errors), goal.views(self.total[None]), strict=True):
            size = float(answer.abs().sum())
            sizes = vectors.abs().sum(1).double().cpu()
            both = float(vectors.square().sum(0).sqrt().sum()) if self.rule.independent else float(sizes.sum())
            each.append(
                sizes / size
                if size > 0
                else torch.full_like(sizes, float("inf")).where(sizes > 0, torch.zeros_like(sizes))
            )
            whole.append(both / size if size > 0 else (float("inf") if both > 0 else 0.0))
        return torch.stack(each).amax(0), max(whole)

    def _settle(self, goal: Goal, pieces: list[Piece], worst: list[float], enough: bool) -> None:
        """Stop, or ask for the middles of the worst panels."""
        limit, left = _SHARE * max(worst), self.room - self.evaluations
        if self.eager:  # every panel that has more than its part of what is allowed, and is not dwarfed by the worst
            limit = min(limit, max(goal.reach / len(pieces), _DWARFED * max(worst)))
        start = [w for (_, a, b), w in zip(pieces, worst, strict=True) if a == 0 and b <= _NARROWEST]
        self.unbounded = max(start, default=0.0) > goal.reach
        ranked = sorted(zip(worst, pieces, strict=True), key=lambda one: -one[0])
        middles = [(path, (a + b) / 2) for w, (path, a, b) in ranked if w >= limit and b - a > _NARROWEST]
        self.done = enough or self.unbounded or not middles[:left]
        self.wanted = [] if self.done else middles[:left]
        if self.done:
            self.nodes = []
