"""The pointing game (Zhang et al. 2018)."""

from __future__ import annotations

from typing import Annotated

import torch

from whence.evaluation.metrics import metric
from whence.evaluation.metrics.segmentation import on_mask
from whence.evaluation.requests import Result, View
from whence.registry import Bounds


@metric(
    "pointing_game",
    order=110,
    paper="Zhang et al. 2018, arXiv:1608.00507",
    better="higher",
    of="images",
    needs=("mask",),
)
def pointing_game(
    view: View, *, ignore: int = 255, tolerance: Annotated[float, Bounds(low=0)] = 0.0
) -> Result:  # fmt: skip
    """Whether the highest pixel lies on the object; rows with an empty mask do not count.

    `tolerance` is how many pixels away from the object it may lie: 15 in the paper.
    """
    scores, gold, _ = on_mask(view, ignore)
    if not bool(gold.any()):
        return Result(float("nan"))
    highest = (scores == scores.max()).nonzero().double()  # (points, 2)
    hits = (torch.cdist(highest, gold.nonzero().double()).amin(1) <= tolerance + 1e-9).double()
    return Result(float(hits.mean()))  # of a tie, the share on the object
