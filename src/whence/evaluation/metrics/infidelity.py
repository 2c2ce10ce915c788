"""Infidelity: how well φ predicts what a perturbation does to the score (Yeh et al. 2019)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from whence.errors import InputError
from whence.evaluation.metrics import Asking, metric
from whence.evaluation.metrics.shares import Output, values
from whence.evaluation.requests import Moved, Result, View
from whence.registry import Bounds

Samples = Annotated[int, Bounds(low=1)]


@metric(
    "infidelity", order=50, paper="Yeh et al. 2019, arXiv:1901.09392", better="lower", within=(0, None),
    operators=("mask", "pad", "delete", "mean"),
)  # fmt: skip
def infidelity(
    view: View, *, samples: Samples = 20, kind: Literal["subset", "noise"] = "subset",
    noise: Annotated[float, Bounds(low=0, open_low=True)] = 0.2, scaled: bool = True, operator: Any = None,
    output: Output = "logit",
) -> Asking:  # fmt: skip
    """E[(Iᵀφ − (f(x) − f(x − I)))²], at the best scale of φ if `scaled`.

    `kind="subset"` removes a random half of the units, Iᵀφ being the sum of their values: for methods whose values are
    shares of the score. `kind="noise"` takes away Gaussian noise I, as the paper has it for values like gradients.
    """
    if kind == "subset":
        guess, rise = yield from _subsets(view, samples, operator, output)
    else:
        guess, rise = yield from _noises(view, samples, noise, output)
    return Result(float(squared_error(guess, rise, scaled)))


def squared_error(guess: Tensor, rise: Tensor, scaled: bool) -> Tensor:
    """The mean of (guess − rise)² over the last dimension, the guesses at their best scale if `scaled`."""
    if scaled:
        size = (guess**2).mean(-1, keepdim=True)
        guess = guess * (guess * rise).mean(-1, keepdim=True) / torch.where(size > 0, size, 1.0)
    return ((guess - rise) ** 2).mean(-1)


def _subsets(view: View, samples: int, how: Any, output: str) -> Any:
    free, generator = view.example.free.nonzero().flatten(), view.generator(1)
    subsets = [free[torch.rand(len(free), generator=generator, device="cpu") < 0.5] for _ in range(samples)]
    asked = [view.without(free[:0], how), *(view.without(units, how) for units in subsets)]
    whole, *without = values(view, (yield asked), output)
    guess = torch.stack([view.scores[units].sum() for units in subsets])
    return guess, whole - torch.tensor(without, dtype=torch.float64, device="cpu")


def _noises(view: View, samples: int, noise: float, output: str) -> Any:
    if view.example.ids:
        raise InputError('infidelity: kind="noise" is for numbers, but the rows are token ids.\n  Use kind="subset".')
    generator, x = view.generator(1), view.example.x
    draws = [
        noise * torch.randn(x.shape, generator=generator, dtype=torch.float64, device="cpu") for _ in range(samples)
    ]
    whole, *moved = values(
        view, (yield [Moved(torch.zeros(x.shape, device="cpu")), *(Moved(-draw) for draw in draws)]), output
    )
    guess = torch.stack([(draw * view.raw.cpu().double()).sum() for draw in draws])
    return guess, whole - torch.tensor(moved, dtype=torch.float64, device="cpu")
