"""Integrals from a baseline to the input, at exactly the points that Captum's methods of approximation have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.captum.calls import Tensors, check, more_targets, repeated
from whence.captum.views import explained
from whence.util.quadrature import fixed

RULES = {
    "riemann_left": "left",
    "riemann_right": "right",
    "riemann_middle": "midpoint",
    "riemann_trapezoid": "trapezoid",
    "gausslegendre": "gauss_legendre",
}


@dataclass(frozen=True)
class Integral:
    """A rule by Captum's name, with so many points."""

    method: str
    n_steps: int

    def __post_init__(self) -> None:
        check(self.method in RULES, f"method={self.method!r} is not known.\n  Give one of {', '.join(RULES)}.")
        if not isinstance(self.n_steps, int):
            raise TypeError(f"The number of steps is {self.n_steps!r}.\n  Give a whole number.")
        least = 1 if self.method == "gausslegendre" else 2
        check(self.n_steps >= least, f"The number of steps is {self.n_steps}.\n  Give at least {least}.")

    @property
    def _own(self) -> tuple[str, int, float]:
        """Whence's rule, its steps, and a factor: Captum's n points of a trapezoid weigh 1/n, not 1/(n − 1)."""
        if self.method == "riemann_trapezoid":
            return "trapezoid", max(self.n_steps - 1, 1), (self.n_steps - 1) / self.n_steps
        return RULES[self.method], self.n_steps, 1.0

    def points(self) -> tuple[list[float], list[float]]:
        """Where on [0, 1] the points are, and their weights."""
        rule, steps, factor = self._own
        nodes, weights = fixed(rule, steps)
        return np.asarray(nodes).tolist(), (np.asarray(weights) * factor).tolist()

    def explained(
        self,
        function: Callable[..., Any],
        xs: Tensors,
        starts: Tensors,
        args: tuple[Any, ...],
        target: Any,
        batch_size: int | None,
        *,
        multiply: bool,
        grad_kwargs: Any = None,
    ) -> Tensors:
        """Integrated gradients by `whence.explain`; the mean gradient alone without `multiply`."""
        rule, steps, factor = self._own
        values = explained(
            function, xs, args, target, "integrated_gradients",
            baselines=starts, batch_size=batch_size or None, rule=rule, steps=steps, multiply_by_inputs=multiply,
            grad_kwargs=grad_kwargs,
        )  # fmt: skip
        return tuple(value * factor for value in values) if factor != 1 else values

    def weighted(
        self,
        work: Callable[[Tensors, tuple[Any, ...], Any], Tensors],
        xs: Tensors,
        starts: Tensors,
        args: tuple[Any, ...],
        target: Any,
        batch_size: int | None,
    ) -> Tensors:
        """The weighted sum over the points of what `work` gives for their values, arguments and target."""
        alphas, weights = self.points()
        sums: list[Any] = []
        for first, found in at_points(alphas, work, xs, starts, args, target, batch_size):
            for i, value in enumerate(found):
                steps = value.unflatten(0, (-1, len(xs[0])))
                w = (
                    torch.tensor(weights[first : first + len(steps)], device="cpu")
                    .to(steps)
                    .view(-1, *[1] * value.dim())
                )
                part = (steps * w).sum(0)
                sums[i : i + 1] = [part + sums[i] if i < len(sums) else part]
        return tuple(sums)


def at_points(
    alphas: list[float],
    work: Callable[[Tensors, tuple[Any, ...], Any], Any],
    xs: Tensors,
    starts: Tensors,
    args: tuple[Any, ...],
    target: Any,
    batch_size: int | None,
) -> list[tuple[int, Any]]:
    """`work` at points between the baselines and the inputs, as many at a time as `batch_size` rows allow."""
    rows = len(xs[0])
    some = max(1, batch_size // rows) if batch_size else len(alphas)
    found = []
    for first in range(0, len(alphas), some):
        part = alphas[first : first + some]
        points = tuple(
            torch.cat([start + alpha * (x - start) for alpha in part]) for x, start in zip(xs, starts, strict=True)
        )
        more = tuple(repeated(arg, len(part)) for arg in args)
        found.append((first, work(points, more, more_targets(target, len(part)))))
    return found


def stacked(found: list[tuple[int, Any]], rows: int, which: int) -> Tensor:
    """What was found at all points as (points, rows, …), of one of the tensors."""
    return torch.cat([values[which].unflatten(0, (-1, rows)) for _, values in found])
