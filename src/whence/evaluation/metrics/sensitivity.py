"""Sensitivity-max: how far an explanation moves when its input hardly does (Yeh et al. 2019)."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from whence.errors import InputError
from whence.evaluation.metrics import Asking, metric
from whence.evaluation.requests import Again, Result, View
from whence.registry import Bounds


@metric(
    "sensitivity_max",
    order=60,
    paper="Yeh et al. 2019, arXiv:1901.09392",
    better="lower",
    within=(0, None),
    of="values",
)
def sensitivity_max(
    view: View, *, radius: Annotated[float, Bounds(low=0, open_low=True)] = 0.02,
    samples: Annotated[int, Bounds(low=1)] = 10,
) -> Asking:  # fmt: skip
    """max ‖φ(x+δ) − φ(x)‖₂ / ‖φ(x)‖₂ over random δ with |δ| ≤ radius everywhere."""
    if view.example.ids:
        raise InputError("sensitivity_max perturbs numbers, but the rows are token ids.\n  Leave it out.")
    x, generator = view.example.x, view.generator(2)
    draws = [
        radius * (2 * torch.rand(x.shape, generator=generator, dtype=torch.float64, device="cpu") - 1)
        for _ in range(samples)
    ]
    here = view.attribution.raw.cpu().double()
    answers = yield [Again(draw) for draw in draws]
    moved = torch.stack([raw.cpu().double().flatten() for raw in answers])
    return Result(float(largest_move(here.flatten(), moved)))


def largest_move(here: Tensor, moved: Tensor, norm: float = 2.0) -> Tensor:
    """The largest ‖moved − here‖ / ‖here‖ over the first dimension of what moved; NaN where there is nothing here."""
    size = torch.linalg.vector_norm(here, norm, -1)
    return torch.linalg.vector_norm(moved - here, norm, -1).amax(0) / torch.where(size > 0, size, torch.nan)
