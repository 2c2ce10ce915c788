"""ROAD: removed pixels are guessed from their neighbours, so that holes say nothing (Rong et al. 2022)."""

from __future__ import annotations

from typing import Annotated, Any

from whence.errors import InputError
from whence.evaluation.metrics import Asking, metric
from whence.evaluation.metrics.shares import Output, count, percents, values
from whence.evaluation.requests import Result, View
from whence.registry import Bounds

_PAPER = "Rong et al. 2022, arXiv:2202.00449"
_K = (10, 20, 30, 40, 50, 60, 70, 80, 90)
Noise = Annotated[float, Bounds(low=0)]


@metric("road_morf", order=40, paper=_PAPER, better="lower", within_probability=(0, 1), of="images")
def road_morf(
    view: View, *, k: Any = _K, noise: Noise = 0.01, output: Output = "probability", absolute: bool = False
) -> Asking:
    """Mean p over 10 … 90 % of the pixels imputed, the most relevant first."""
    return (yield from _curve(view, False, k, noise, output, absolute))


@metric("road_lerf", order=40, paper=_PAPER, better="higher", within_probability=(0, 1), of="images")
def road_lerf(
    view: View, *, k: Any = _K, noise: Noise = 0.01, output: Output = "probability", absolute: bool = False
) -> Asking:
    """Mean p over 10 … 90 % of the pixels imputed, the least relevant first."""
    return (yield from _curve(view, True, k, noise, output, absolute))


def _curve(view: View, least: bool, k: Any, noise: float, output: str, absolute: bool) -> Asking:
    if not view.example.image:
        raise InputError("ROAD imputes pixels, but the rows are not images.\n  Leave it out.")
    shares = percents(k, "road")
    order = view.order(absolute=absolute, least=least)
    asked = [view.without(order[: count(view, share, "nearest")], "road", noise) for share in (0, *shares)]
    y = values(view, (yield asked), output)
    return Result(sum(y[1:]) / len(shares), curve=([0, *shares], y))
