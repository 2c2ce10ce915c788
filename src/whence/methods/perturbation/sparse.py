"""A sparse linear model of the score as a function of which units are there: few sources, as an answer has."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Tensor

from whence.methods import method
from whence.methods.answer import Answer
from whence.methods.perturbation.coalitions import players
from whence.methods.perturbation.surrogate import at_random
from whence.registry import Bounds
from whence.subject import Subject
from whence.subject.record import row_entries

_HELD = 5  # one mask in five is held out
_STEPS, _STILL = 20_000, 1e-12  # of the descent, and what change ends it, relative to the largest coefficient


@method(
    "context_cite",
    paper="Cohen-Wang, Shah, Georgiev & Mądry 2024, arXiv:2409.00729; the lasso: Tibshirani 1996",
    order=140,
    aliases=("lasso",),
    propagates=False,
    reference=True,
)
def context_cite(
    subject: Subject,
    *,
    units: Any = "auto",
    samples: Annotated[int, Bounds(low=5)] = 64,
    penalty: Annotated[float, Bounds(low=0, high=1)] = 0.02,
) -> Answer:
    """A lasso of the score on random masks z, min (1/2m)·Σ_z (f(z) − b − φ·z)² + λ·|φ|₁: most units get exactly 0.

    λ is `penalty` times the smallest one at which all φ are 0. Each unit is there with probability ½; all 2ⁿ masks are
    taken where they are no more than `samples`. One mask in five is held out, and `receipt["r_squared"]` is the share
    of the variance of their scores that the model predicts. Every element of a unit gets the unit's φ.
    """
    game = players(subject, units)
    drawn = bool((game.numbers.counts >= samples.bit_length()).any())
    groups = game.grouped(lambda n, row=0: at_random(subject, row, n, samples), seeded=drawn)
    played = game.play(groups)
    fitted, explained = [], torch.zeros_like(game.score, dtype=torch.float64, device="cpu")
    for group, v in zip(groups, played.scores, strict=True):
        z, y = group.drawn.double(), v.movedim(1, 0)  # (m, n), (m, rows, k)
        held = torch.arange(len(z), device="cpu") % _HELD == 2
        held[-1] = False  # the whole input
        weights, constant = lasso(z[~held], y[~held].flatten(1), penalty)
        told = (z[held] @ weights + constant).view(-1, *y.shape[1:])
        explained[group.rows] = r_squared(told, y[held])
        fitted.append(weights.view(-1, *y.shape[1:]).movedim(0, 1))  # (rows, n, k)
    answer = game.answer(played, fitted)
    return replace(answer, per_row={**answer.per_row, "r_squared": row_entries(explained)})


def lasso(z: Tensor, y: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """The weights (n, c) and constants (c,) of c models of y (m, c), by accelerated proximal descent with restarts."""
    centre, mean = z.mean(0), y.mean(0)
    x, left = z - centre, y - mean
    pull = x.T @ left / len(x)
    limit = penalty * pull.abs().amax(0)
    steep = torch.linalg.matrix_norm(x, 2) ** 2 / len(x)
    weights = ahead = torch.zeros_like(pull)
    speed = torch.ones(pull.shape[1], dtype=pull.dtype, device="cpu")
    still = torch.zeros(pull.shape[1], dtype=torch.bool, device="cpu")
    for _ in range(_STEPS):
        if bool(still.all()) or not float(steep):
            break
        moved = ahead - (x.T @ (x @ ahead) / len(x) - pull) / steep
        new = torch.where(still, weights, moved.sign() * (moved.abs() - limit / steep).clamp(min=0))
        back = ((ahead - new) * (new - weights)).sum(0) > 0  # it overshoots
        speed = torch.where(back, torch.ones_like(speed), speed)
        faster = (1 + (1 + 4 * speed**2).sqrt()) / 2
        ahead = new + torch.where(back, torch.zeros_like(speed), (speed - 1) / faster) * (new - weights)
        still |= (new - weights).abs().amax(0) <= _STILL * new.abs().amax(0)
        weights, speed = new, faster
    return weights, mean - centre @ weights


def r_squared(told: Tensor, y: Tensor) -> Tensor:
    """1 − Σ(y − told)²/Σ(y − ȳ)² over the first axis; 1 where nothing varies and all of it was told."""
    lost, whole = ((y - told) ** 2).sum(0), ((y - y.mean(0)) ** 2).sum(0)
    same = lost <= 1e-20 * (1 + (y**2).sum(0))
    return torch.where(same, torch.ones_like(lost), 1 - lost / whole)
