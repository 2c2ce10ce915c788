"""Whether the parts add up to what was to be explained (Sundararajan, Taly & Yan 2017)."""

from __future__ import annotations

from whence.evaluation.metrics import metric
from whence.evaluation.requests import Result, View


@metric(
    "completeness_gap",
    order=80,
    paper="Sundararajan, Taly & Yan 2017, arXiv:1703.01365",
    better="lower",
    within=(0, None),
)
def completeness_gap(view: View, *, relative: bool = True) -> Result:
    """|Σφ − (f(x) − f(x'))|, relative to |f(x) − f(x')| or as it is; the other one is given beside it.

    Methods without a baseline of their own take the evaluation's, `baseline=0`; without one they have no score, nor do
    texts that are read in overlapping windows.
    """
    a = view.attribution
    if a.baseline_value is None or view.example.windows is not None:
        return Result(float("nan"))
    rise = float(a.output_value[0]) - float(a.baseline_value[0])
    gap = abs(float(a.raw.double().sum()) - rise)
    share = gap / abs(rise) if rise else float("nan")
    parts = {"absolute": gap} if share != share else {"absolute": gap, "relative": share}
    return Result(share if relative else gap, parts)
