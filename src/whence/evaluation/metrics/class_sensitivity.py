"""Whether an explanation depends on the class that it explains."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Annotated

from whence.evaluation.metrics import Asking, metric
from whence.evaluation.requests import OtherClass, Result, View
from whence.registry import Bounds
from whence.util.stats import correlation, spearman


@metric(
    "class_sensitivity",
    order=75,
    paper="Sixt, Granz & Landgraf 2020, arXiv:1912.09818; Chefer, Gur & Wolf 2021, arXiv:2012.09838",
    better="lower",
    within=(-1, 1),
)
def class_sensitivity(view: View, *, classes: Annotated[int, Bounds(low=1)] = 3, ranks: bool = True) -> Asking:
    """Mean correlation of φ with φ of other classes: 1 for a method that ignores which class it explains.

    The others are those with the highest scores, at most `classes` of them; a model of one score has none. `ranks` is
    Spearman's correlation, else Pearson's.
    """
    order = view.logits.argsort(descending=True, stable=True).tolist()
    others = [number for number in order if number != view.target][:classes]
    if not others:
        return Result(float("nan"))
    here = view.settled(view.scores)
    answers = yield [OtherClass(number) for number in others]
    found = []
    for scores in answers:
        there = view.settled(scores)
        centred = (here - here.mean(), there - there.mean())
        found.append(spearman(here, there) if ranks else float(correlation(*centred)))
    known = [rho for rho in found if not math.isnan(rho)]
    parts = {"undefined": float(len(found) - len(known))} if len(known) < len(found) else {}
    return Result(fmean(known) if known else float("nan"), parts)
