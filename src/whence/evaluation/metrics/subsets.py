"""Random subsets of units: what their attributions add up to, and what the score loses without them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.evaluation.metrics.shares import values
from whence.evaluation.requests import View
from whence.util.stats import correlation


def drawn(view: View, count: int, samples: int, salt: int) -> list[Tensor]:
    """Random subsets of so many removable units."""
    free, generator = view.example.free.nonzero().flatten(), view.generator(salt)
    return [free[torch.randperm(len(free), generator=generator, device="cpu")[:count]] for _ in range(samples)]


def agreements(
    view: View, groups: Sequence[Sequence[Tensor]], operator: Any, output: str
) -> Generator[list[Any], Any, list[float]]:
    """For each group of subsets, Pearson's correlation of Σφ with what the score loses; NaN where one is constant."""
    asked = [view.without(units, operator) for group in groups for units in group]
    whole, *without = values(view, (yield [view.without(view.order()[:0], operator), *asked]), output)
    lost = iter(whole - p for p in without)
    found = []
    for group in groups:
        guess = torch.stack([view.scores[units].sum() for units in group])
        loss = torch.tensor([next(lost) for _ in group], dtype=torch.float64, device="cpu")
        found.append(float(correlation(_centred(guess), _centred(loss))))
    return found


def _centred(numbers: Tensor) -> Tensor:
    """Numbers minus their mean; what is rounding beside them is 0, which has no correlation."""
    apart = numbers - numbers.mean()
    return torch.where(apart.abs() > 1e-12 * numbers.abs().amax(), apart, 0.0)
