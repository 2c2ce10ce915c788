"""Faithfulness correlation: attributions of random subsets against what the score loses (Bhatt et al. 2020)."""

from __future__ import annotations

from typing import Annotated, Any

from whence.evaluation.metrics import Asking, metric
from whence.evaluation.metrics.shares import Output, count
from whence.evaluation.metrics.subsets import agreements, drawn
from whence.evaluation.requests import Result, View
from whence.registry import Bounds


@metric(
    "faithfulness_correlation", order=54, paper="Bhatt, Weller & Moura 2020, arXiv:2005.00631", better="higher",
    within=(-1, 1), operators=("mask", "pad", "delete", "mean"),
)  # fmt: skip
def faithfulness_correlation(
    view: View, *, k: Annotated[float, Bounds(low=0, high=100, open_low=True)] = 20.0,
    samples: Annotated[int, Bounds(low=2)] = 100, operator: Any = None, output: Output = "probability",
) -> Asking:  # fmt: skip
    """The correlation of Σφ over random k % of the units with p(x) − p(x without them), over `samples` subsets."""
    size = max(1, count(view, k / 100, "nearest"))
    (rho,) = yield from agreements(view, [drawn(view, size, samples, 40)], operator, output)
    return Result(rho)
