"""The registry of properties, what a measurement says, and how the worst of many is reported."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from whence.evaluation.axioms.asker import Asker
from whence.evaluation.axioms.points import Points
from whence.evaluation.axioms.table import Finding, Verdict, Witness
from whence.registry import Registry

Property = Callable[[Asker], Finding]
properties: Registry[Property] = Registry("property", package=__package__)
axiom = properties.register

_SHOWN = 16  # numbers of an input in a witness


def size(phi: Tensor) -> Tensor:
    """The largest magnitude of each point's attributions, (points,)."""
    return phi.abs().flatten(1).amax(1)


def share(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, and 0 where there is nothing."""
    return torch.where(part > 0, part / whole.clamp(min=torch.finfo(torch.float64).tiny), 0.0)


def worst(
    ask: Asker, violation: Tensor, points: Points, said: Callable[[int], str], *, unit: Tensor | None = None,
    tolerance: float | None = None, held: Verdict = "yes", note: str = "",
) -> Finding:  # fmt: skip
    """The verdict on the worst of many points, which is the witness."""
    at = int(violation.argmax())
    number = float(violation[at])
    verdict: Verdict = "no" if number > (ask.tolerance if tolerance is None else tolerance) else held
    return Finding(number, verdict, witness(ask, points, at, said(at), unit), note)


def witness(ask: Asker, points: Points, at: int, said: str, unit: Tensor | None = None) -> Witness:
    """One point in a small form: all of a small input, else the unit that it is about, else its beginning."""
    x, x0 = points.x[at], points.baseline[at]
    place = None if unit is None else int(unit[at])
    if x.numel() > _SHOWN and place is not None:
        x, x0 = x[place], x0[place]
    row = ask.probe.numbers[int(points.row[at])]
    return Witness(row, None if place is None else ask.probe.place(place), _numbers(x), _numbers(x0), said)


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(round(v, 6) for v in values.flatten()[:_SHOWN].tolist())
