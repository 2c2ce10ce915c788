"""Deletion and insertion: the score as units go, or come (Petsiuk, Das & Saenko 2018)."""

from __future__ import annotations

from typing import Annotated, Any

from whence.evaluation.metrics import Asking, metric
from whence.evaluation.metrics.shares import Output, count, trapezoid, values
from whence.evaluation.requests import Result, View
from whence.registry import Bounds

Steps = Annotated[int, Bounds(low=1)]


@metric(
    "deletion",
    order=20,
    paper="Petsiuk, Das & Saenko 2018, arXiv:1806.07421",
    better="lower",
    within_probability=(0, 1),
    operators=("mask", "pad", "zero"),
)
def deletion(
    view: View, *, steps: Steps = 20, operator: Any = None, output: Output = "probability", absolute: bool = False
) -> Asking:
    """The area under p as the most relevant units go first, to zero; over shares from 0 to 1."""
    return (yield from _curve(view, False, steps, operator, output, absolute))


@metric(
    "insertion",
    order=20,
    paper="Petsiuk, Das & Saenko 2018, arXiv:1806.07421",
    better="higher",
    within_probability=(0, 1),
    operators=("mask", "pad", "blur"),
)
def insertion(
    view: View, *, steps: Steps = 20, operator: Any = None, output: Output = "probability", absolute: bool = False
) -> Asking:
    """The area under p as the most relevant units come first, from a blurred image; over shares from 0 to 1.

    `operator="rise_blur"` is the blur of RISE's own program.
    """
    return (yield from _curve(view, True, steps, operator, output, absolute))


def _curve(view: View, comes: bool, steps: int, how: Any, output: str, absolute: bool) -> Asking:
    order = view.order(absolute=absolute)
    shares = [i / steps for i in range(steps + 1)]
    turned = view.only if comes else view.without
    y = values(view, (yield [turned(order[: count(view, share, "nearest")], how) for share in shares]), output)
    return Result(trapezoid(y, shares), curve=(shares, y))
