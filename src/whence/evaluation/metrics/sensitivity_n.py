"""Sensitivity-n: whether attributions of n units add up to what the score loses without them (Ancona et al. 2018)."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Annotated, Any

from whence.evaluation.metrics import Asking, metric
from whence.evaluation.metrics.shares import Output, count, percents
from whence.evaluation.metrics.subsets import agreements, drawn
from whence.evaluation.requests import Result, View
from whence.registry import Bounds


@metric(
    "sensitivity_n", order=52, paper="Ancona et al. 2018, arXiv:1711.06104", better="higher", within=(-1, 1),
    operators=("mask", "pad", "delete", "zero"),
)  # fmt: skip
def sensitivity_n(
    view: View, *, k: Any = (10, 20, 40, 60, 80), samples: Annotated[int, Bounds(low=2)] = 20, operator: Any = None,
    output: Output = "logit",
) -> Asking:  # fmt: skip
    """Mean over n of the correlation of Σφ over n random units with f(x) − f(x without them); n are shares k of all."""
    shares = percents(k, "sensitivity_n")
    sizes = [max(1, count(view, share, "nearest")) for share in shares]
    groups = [drawn(view, size, samples, 20 + number) for number, size in enumerate(sizes)]
    found = yield from agreements(view, groups, operator, output)
    known = [rho for rho in found if not math.isnan(rho)]
    parts = {"undefined": float(len(found) - len(known))} if len(known) < len(found) else {}
    return Result(fmean(known) if known else float("nan"), parts, (shares, found))
