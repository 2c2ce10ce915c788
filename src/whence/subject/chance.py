"""Models that draw random numbers although they are in eval mode, so that their score is another one each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.errors import warn

if TYPE_CHECKING:
    from whence.subject.subject import Subject

_ROUNDING = 1e-4  # of the largest score: an order that is drawn by lot changes no more than this


def warn_of_chance(subject: Subject, scores: Tensor, again: Callable[[], Tensor]) -> None:
    """Warn if the model's scores change with what it draws: `again` gives those of another draw."""
    with torch.no_grad():
        other = again()
    if other.shape != scores.shape:
        return
    change = (other.double() - scores.detach().double()).abs().max()
    size = torch.maximum(other.abs().max(), scores.detach().abs().max()).double()
    if not bool(change <= _ROUNDING * size):
        subject.record.chance = True
        warn(
            f"{subject.method}: the model draws random numbers in eval mode, and its scores change with them, by up to "
            "{share} of the largest. What is explained is one draw, and a method that compares several passes "
            "mistakes chance for an effect. Turn the noise off, or give the model a generator of its own that it seeds "
            "anew in every call.",
            share=float(change / size),
        )
