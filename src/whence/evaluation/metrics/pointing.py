"""The pointing game (Zhang et al. 2018)."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from whence.evaluation.metrics import metric
from whence.evaluation.metrics.segmentation import on_mask
from whence.evaluation.requests import Result, View
from whence.registry import Bounds


@metric(
    "pointing_game",
    order=110,
    paper="Zhang et al. 2018, arXiv:1608.00507",
    better="higher",
    within=(0, 1),
    of="images",
    needs=("mask",),
    proportion=True,
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
    hits = _near(gold, tolerance)[scores == scores.max()].double()
    return Result(float(hits.mean()))  # of a tie, the share on the object


def _near(gold: Tensor, tolerance: float) -> Tensor:
    """The pixels at most so far from the object: its own under a disc."""
    reach = int(min(tolerance, max(gold.shape)))
    across = torch.arange(-reach, reach + 1, dtype=torch.float64, device="cpu")
    disc = (across[:, None] ** 2 + across**2 <= tolerance**2).double()
    spread = torch.nn.functional.conv2d(gold[None, None].double().cpu(), disc[None, None], padding=reach)
    return spread[0, 0] > 0.5
