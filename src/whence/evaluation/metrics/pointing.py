"""The pointing game (Zhang et al. 2018)."""

from __future__ import annotations

from whence.evaluation.metrics import metric
from whence.evaluation.metrics.segmentation import on_mask
from whence.evaluation.requests import Result, View


@metric(
    "pointing_game",
    order=110,
    paper="Zhang et al. 2018, arXiv:1608.00507",
    better="higher",
    of="images",
    needs=("mask",),
)
def pointing_game(view: View, *, ignore: int = 255) -> Result:
    """Whether the highest pixel lies on the object; rows with an empty mask do not count."""
    scores, gold, _ = on_mask(view, ignore)
    if not bool(gold.any()):
        return Result(float("nan"))
    hits = gold[scores == scores.max()].double()
    return Result(float(hits.mean()))  # of a tie, the share on the object
