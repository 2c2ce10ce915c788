"""Accuracy as pixels or tokens go, the most or the least relevant first (Chefer, Gur & Wolf 2021)."""

from __future__ import annotations

from typing import Any

from whence.errors import InputError
from whence.evaluation.metrics import Asking, metric
from whence.evaluation.metrics.shares import count, trapezoid
from whence.evaluation.requests import Result, View, both_classes, decision

_PAPER = "Chefer, Gur & Wolf 2021, arXiv:2012.09838"
_OPERATORS = ("delete", "black")
_SHARES = [i / 10 for i in range(10)]


@metric(
    "perturbation_positive",
    order=30,
    paper=_PAPER,
    better="lower",
    within=(0, 90),
    needs=("label",),
    operators=_OPERATORS,
)
def perturbation_positive(view: View, *, operator: Any = None, absolute: bool = False) -> Asking:
    """100 · the area under accuracy as 0 … 90 % of the units go, the most relevant first; pixels turn black."""
    return (yield from _curve(view, False, operator, absolute))


@metric(
    "perturbation_negative",
    order=30,
    paper=_PAPER,
    better="higher",
    within=(0, 90),
    needs=("label",),
    operators=_OPERATORS,
)
def perturbation_negative(view: View, *, operator: Any = None, absolute: bool = False) -> Asking:
    """100 · the area under accuracy as 0 … 90 % of the units go, the least relevant first; pixels turn black."""
    return (yield from _curve(view, True, operator, absolute))


def _curve(view: View, least: bool, operator: Any, absolute: bool) -> Asking:
    classes = len(both_classes(view.logits))
    if view.example.label is None or not 0 <= view.example.label < classes:
        raise InputError(
            f"The label is {view.example.label}, but the model has {classes} classes.\n  Give one of them."
        )
    order = view.order(absolute=absolute, least=least)
    answers = yield [view.without(order[: count(view, share, "floor")], operator) for share in _SHARES]
    right = [float(decision(logits) == view.example.label) for logits in answers]
    return Result(100 * trapezoid(right, _SHARES), {"base accuracy": right[0]}, (_SHARES, right))
