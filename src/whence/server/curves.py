"""Deletion curves of what has no class of its own to follow: written answers, and molecules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.evaluation.deletion_check import places_of
from whence.evaluation.metrics.shares import trapezoid

Measure = Callable[[Sequence[Sequence[int]]], Tensor]  # several choices of equally many units → a probability for each


def ranked(scores: Tensor, free: Sequence[int]) -> list[int]:
    """The units that may go, from the highest value to the lowest; ties by a fixed draw."""
    mixed = torch.randperm(len(free), generator=_seeded(0), device="cpu")
    own = torch.nan_to_num(scores.detach().cpu().double()[list(free)])
    return [free[i] for i in mixed[own[mixed].argsort(descending=True, stable=True)].tolist()]


def curves(
    orders: Mapping[str, list[int]], free: Sequence[int], most: int, steps: int, draws: int, measure: Measure
) -> dict[str, Any]:
    """The probability as each method's first units go, at most so many, beside random orders of the same units."""
    places = places_of(most, steps)
    chance = [
        [free[i] for i in torch.randperm(len(free), generator=_seeded(1 + n), device="cpu")] for n in range(draws)
    ]
    every = [*orders.values(), *chance]
    told = torch.stack([measure([order[:count] for order in every]) for count in places], 1)  # (orders, places)
    found, random = told[: len(orders)], told[len(orders) :]
    low, high = random.quantile(torch.tensor([0.1, 0.9], dtype=torch.double, device="cpu"), 0)
    mean = random.mean(0)
    lines = {name: found[i].tolist() for i, name in enumerate(orders)}
    return {
        "places": places, "curves": lines,
        "random": {"mean": mean.tolist(), "low": low.tolist(), "high": high.tolist()},
        "left": {name: _left(line, places) for name, line in {**lines, "": mean.tolist()}.items()},
        "orders": {name: [[unit] for unit in order] for name, order in orders.items()},
    }  # fmt: skip


def _left(line: Sequence[float], places: Sequence[int]) -> float:
    """What is left of the probability on average."""
    return trapezoid(line, places) / (places[-1] or 1)


def _seeded(number: int) -> torch.Generator:
    return torch.Generator(device="cpu").manual_seed(number)
