"""The pointing game (Zhang et al. 2018)."""

from __future__ import annotations

from whence.errors import InputError
from whence.evaluation.asking import Result, View
from whence.metrics import metric


@metric("pointing_game", paper="Zhang et al. 2018, arXiv:1608.00507", better="higher", of="images", needs=("mask",))
def pointing_game(view: View, *, ignore: int = 255) -> Result:
    """Whether the highest pixel lies on the object; rows with an empty mask do not count."""
    case, mask = view.case, view.case.mask
    assert mask is not None
    if tuple(mask.shape) != case.shape:
        raise InputError(
            f"The mask is {tuple(mask.shape)}, and the map {case.shape}.\n  Give masks of the image's size."
        )
    gold = mask.bool() if mask.dtype == mask.bool().dtype else mask.bool() & (mask != ignore)
    if not bool(gold.any()):
        return Result(float("nan"))
    highest = int(view.order()[0])
    return Result(float(gold.flatten()[highest]))
