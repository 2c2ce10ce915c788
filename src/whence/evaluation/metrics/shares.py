"""How many units a share is, and what the metrics of removal have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from whence.evaluation.requests import View
from whence.util.checks import not_allowed

Output = Literal["probability", "log_probability", "logit"]
Rounding = Literal["ceil", "floor", "nearest"]
_ROUNDED = {"ceil": math.ceil, "floor": math.floor, "nearest": lambda number: math.floor(number + 0.5)}


def count(view: View, share: float, rounding: Rounding) -> int:
    """How many of the removable units a share of them is."""
    whole = int(view.example.free.sum())
    return min(whole, _ROUNDED[rounding](round(share * whole, 9)))


def percents(k: Any, owner: str) -> list[float]:
    """Percentages as shares."""
    given = [k] if isinstance(k, int | float) else list(k) if isinstance(k, Sequence) and not isinstance(k, str) else []
    if not given or not all(isinstance(p, int | float) and 0 < p <= 100 for p in given):
        raise not_allowed("k", k, "percentages above 0, at most 100", owner)
    return [p / 100 for p in given]


def trapezoid(y: Sequence[float], x: Sequence[float]) -> float:
    """The area under a curve."""
    return sum((b - a) * (u + v) / 2 for a, b, u, v in zip(x, x[1:], y, y[1:], strict=False))


def values(view: View, answers: Sequence[Tensor], output: str) -> list[float]:
    """The explained score of each answer."""
    return [float(view.value(logits, output)) for logits in answers]
