"""Integration of smooth functions in few passes: a rule for a whole path whose points are doubled until it is right.

Clenshaw and Curtis's rule at n + 1 points holds those at n/2 + 1 and n/4 + 1, so that one pass gives three integrals.
For a smooth function each doubling gains many times more than the one before; where it does not, there is a kink that
no op shows, or a bend that is too sharp, and the points are handed on to the rules of `adaptive`, which look panel by
panel.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from whence.methods.integrated.adaptive import KINKED, SMOOTH, Goal, Point, State, errors_of
from whence.util.quadrature import fixed
from whence.util.stats import score_scale

_START = 16  # panels to begin with
_GAIN = 0.15  # of one doubling's change, what the next may change by at most
_SURELY = 32  # panels from which such a gain is trusted to go on
_GOES_ON = 0.25  # of the last change: what is said to be still missing
_SAID = 0.1  # of the tolerance: a smaller change needs no gain
_ROUNDING = 64  # times the precision: the same
_BEND = 0.1  # of a path, in which the error of a function lies that is smooth but for the path's beginning


@dataclass
class Doubled:
    """One row's integral so far."""

    weights: tuple[float, ...]  # of its paths
    room: int  # evaluations at most
    scheme: str = "gradients"
    total: Tensor = field(default_factory=lambda: torch.zeros((), device="cpu"))
    evaluations: int = 0
    error: float = float("inf")
    gap: float = float("inf")
    before: float = 0.0  # f(x')
    nodes: list[dict[float, tuple[float, Tensor]]] = field(default_factory=list)  # by path: α to score and slopes
    wanted: list[Point] = field(default_factory=list)
    done: bool = False
    unbounded: bool = False
    _panels: int = _START

    def __post_init__(self) -> None:
        self.nodes = [{} for _ in self.weights]
        self.wanted = [(path, a) for path in range(len(self.weights)) for a in alphas_of(_START)]

    @classmethod
    def affordable(cls, paths: int, room: int) -> bool:
        """Whether the first points are within the limit."""
        return paths * (_START + 1) <= room

    def take(self, point: Point, score: float, slopes: Tensor) -> None:
        path, alpha = point
        self.nodes[path][alpha] = (score, slopes)
        self.evaluations += 1

    def judge(self, goal: Goal) -> Doubled | State:
        """Integrate what there is, and stop, ask for twice as many panels, or hand on."""
        n = self._panels
        slopes = [torch.stack([path[a][1] for a in alphas_of(n)]) for path in self.nodes]  # (points, inputs) by path
        low, middle, high = (self._integral(slopes, n, panels) for panels in (n // 4, n // 2, n))
        self.total = high
        ends = [(path[1.0][0], path[0.0][0]) for path in self.nodes]
        rise = sum(w * (after - before) for w, (after, before) in zip(self.weights, ends, strict=True))
        score, self.before = ends[-1][0], ends[-1][0] - rise
        scale = float(score_scale(*torch.tensor([score, self.before], dtype=torch.float64, device="cpu"))) or 1.0
        self.gap = abs(rise - float(high.double().sum())) / scale
        earlier, last = errors_of(goal, torch.stack([middle - low, high - middle]), high)
        gains = last <= _GAIN * earlier or last <= max(_SAID * goal.tolerance, _ROUNDING * goal.precision)
        self.error = last * (_GOES_ON if gains and n >= _SURELY else 1.0)
        self.wanted, self.done = [], gains and self.gap <= goal.reach and self.error <= goal.reach
        if self.done:
            self.nodes = []
            return self
        more = [(path, a) for path in range(len(self.weights)) for a in alphas_of(2 * n)[1::2]]
        if self.evaluations + len(more) > self.room or not (gains or n < _SURELY):
            return self._handed_on(goal, slopes)
        self._panels, self.wanted = 2 * n, more
        return self

    def _integral(self, slopes: list[Tensor], n: int, panels: int) -> Tensor:
        rule = torch.from_numpy(fixed("clenshaw_curtis", panels)[1])
        parts = [rule.to(one) @ one[:: n // panels] * w for w, one in zip(self.weights, slopes, strict=True)]
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]

    def _handed_on(self, goal: Goal, slopes: list[Tensor]) -> State:
        """The same points, judged panel by panel: as a smooth function's where it only bends at the beginning."""
        alphas = torch.tensor(alphas_of(self._panels), dtype=torch.float64, device="cpu")
        scores = torch.zeros_like(alphas)
        sizes = torch.stack([SMOOTH.integrate(alphas, scores, one).errors.abs().sum(1).cpu() for one in slopes]).sum(0)
        bends = float(sizes[alphas[:-1] < _BEND].sum()) > 0.5 * float(sizes.sum())
        state = State(self.weights, SMOOTH if bends else KINKED, self.room, eager=True, evaluations=self.evaluations)
        state.nodes = self.nodes
        return state.judge(goal)


@functools.cache
def alphas_of(panels: int) -> tuple[float, ...]:
    """The points of the rule, the same numbers wherever they occur."""
    return (*(math.sin(math.pi * (i / panels) / 2) ** 2 for i in range(panels)), 1.0)
