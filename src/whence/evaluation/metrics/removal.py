"""What the score loses without the most relevant units, and with nothing else (DeYoung et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from statistics import fmean
from typing import Any

from whence.evaluation.metrics import Asking, metric
from whence.evaluation.metrics.shares import Output, Rounding, count, percents, values
from whence.evaluation.requests import Copy, Result, View

_K = (1, 5, 10, 20, 50)


@metric(
    "comprehensiveness",
    order=10,
    paper="DeYoung et al. 2020, arXiv:1911.03429",
    better="higher",
    within_probability=(-1, 1),
    operators=("delete", "mean"),
)
def comprehensiveness(
    view: View, *, k: Any = _K, operator: Any = None, output: Output = "probability", absolute: bool = False,
    rounding: Rounding = "ceil",
) -> Asking:  # fmt: skip
    """p(x) − p(x without its top k %), mean over k; texts lose tokens, images take their mean colour."""
    shares = percents(k, "comprehensiveness")
    drops = yield from _drops(view, view.without, shares, operator, output, absolute, rounding)
    return Result(fmean(drops), curve=([0, *shares], [0.0, *drops]))


@metric(
    "sufficiency",
    order=10,
    paper="DeYoung et al. 2020, arXiv:1911.03429",
    better="lower",
    within_probability=(-1, 1),
    operators=("delete", "mean"),
)
def sufficiency(
    view: View, *, k: Any = _K, operator: Any = None, output: Output = "probability", absolute: bool = False,
    rounding: Rounding = "ceil",
) -> Asking:  # fmt: skip
    """p(x) − p(the top k % of x only), mean over k; special tokens stay."""
    shares = percents(k, "sufficiency")
    drops = yield from _drops(view, view.only, shares, operator, output, absolute, rounding)
    return Result(fmean(drops), curve=(shares, drops))


@metric(
    "log_odds", order=10, paper="Shrikumar, Greenside & Kundaje 2017, arXiv:1704.02685; Qiang et al. 2022",
    better="lower", operators=("mask", "pad", "delete", "mean"),
)  # fmt: skip
def log_odds(
    view: View, *, k: Any = 20, operator: Any = None, absolute: bool = False, rounding: Rounding = "ceil"
) -> Asking:
    """ln p(x without its top k %) − ln p(x); texts take the mask token, images their mean colour."""
    shares = percents(k, "log_odds")
    drops = yield from _drops(view, view.without, shares, operator, "log_probability", absolute, rounding)
    return Result(-fmean(drops))


@metric(
    "aopc",
    order=10,
    paper="Samek et al. 2017, arXiv:1509.06321",
    better="higher",
    within_probability=(-1, 1),
    operators=("delete", "mean"),
)
def aopc(
    view: View, *, k: Any = (10, 20, 30, 40, 50, 60, 70, 80, 90), operator: Any = None,
    output: Output = "probability", absolute: bool = False, rounding: Rounding = "nearest", count_zero: bool = False,
) -> Asking:  # fmt: skip
    """The mean drop of p over 10 … 90 % removed, the most relevant first: the area over the perturbation curve.

    `count_zero` takes the mean over k = 0 too, where nothing drops: 1/(L + 1) Σ, as Samek et al. write it. They replace
    pixels by random values, `operator="noise"`.
    """
    shares = percents(k, "aopc")
    drops = yield from _drops(view, view.without, shares, operator, output, absolute, rounding)
    return Result(fmean([0.0, *drops] if count_zero else drops), curve=([0, *shares], [0.0, *drops]))


def _drops(
    view: View, turned: Callable[..., Copy], shares: list[float], operator: Any, output: str, absolute: bool,
    rounding: Rounding,
) -> Generator[list[Copy], Any, list[float]]:  # fmt: skip
    """How much lower the score is without the top share of the units, or with nothing else."""
    order = view.order(absolute=absolute)
    asked = [turned(order[: count(view, share, rounding)], operator) for share in shares]
    whole, *changed = values(view, (yield [view.without(order[:0], operator), *asked]), output)
    return [whole - p for p in changed]
