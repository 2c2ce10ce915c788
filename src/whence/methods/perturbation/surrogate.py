"""Linear models of the score as a function of which units are there: KernelSHAP and LIME."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from torch import Tensor

from whence.errors import warn
from whence.methods import method
from whence.methods.answer import Answer
from whence.methods.perturbation.coalitions import Coalitions, Players, every, listed, players
from whence.methods.perturbation.own_parts import Own
from whence.registry import Bounds
from whence.subject import Subject
from whence.subject.noise import generator


@method(
    "kernel_shap",
    paper="Lundberg & Lee 2017, arXiv:1705.07874; pairs as in Covert & Lee 2021, arXiv:2012.01536",
    order=140,
    aliases=("shap",),
    propagates=False,
    reference=True,
    complete="exactly",
)
def kernel_shap(subject: Subject, *, units: Any = "auto", samples: Annotated[int, Bounds(low=4)] = 512) -> Answer:
    """Shapley values by least squares, min Σ_z π(z)·(f(z) − f(x') − φ·z)² with Σφ = f(x) − f(x') kept exactly.

    π(z) = (n−1) / (C(n,|z|)·|z|·(n−|z|)). All 2ⁿ coalitions z are taken where they are no more than `samples`, and the
    answer is the exact one; beyond, `samples` of them drawn by π, each with its complement. A unit's value is shared
    equally among its elements.
    """
    game = players(subject, units)
    drawn = bool((game.numbers.counts >= samples.bit_length()).any())  # 2ⁿ is more than samples
    groups = game.grouped(lambda n, row=0: _by_kernel(subject, row, n, samples), seeded=drawn)
    played = game.play(groups)
    _warn_if_few(game, samples // 2, samples)
    fitted = [_constrained(group.drawn[0], group.drawn[1], v) for group, v in zip(groups, played.scores, strict=True)]
    return game.answer(played, fitted, shared=True, starts=True)


@method(
    "lime",
    paper="Ribeiro, Singh & Guestrin 2016, arXiv:1602.04938",
    order=140,
    propagates=False,
    reference=True,
)
def lime(
    subject: Subject,
    *,
    units: Any = "auto",
    samples: Annotated[int, Bounds(low=2)] = 512,
    width: Annotated[float, Bounds(low=0, open_low=True)] = 0.25,
    ridge: Annotated[float, Bounds(low=0)] = 0.0,
    similarity: Any = None,
    sample: Any = None,
    regressor: Any = None,
) -> Answer:
    """A linear model of the score near the input, min Σ_z π(z)·(f(z) − b − φ·z)² + ridge·|φ|² over random masks z.

    π(z) = exp(−d²/width²), d = 1 − √(|z|/n) the cosine distance of z from the whole input. Each unit is there with
    probability ½; all 2ⁿ masks are taken where they are no more than `samples`. Every element of a unit gets the
    unit's φ. Your own parts: `similarity(x, perturbed, z)` gives the weights π of some samples of a row,
    `sample(x, n, generator)` its masks z (m, n), and `regressor` is any linear one of scikit-learn (`fit` with
    `sample_weight`, `coef_`), a copy of which is fitted to every row.
    """
    own = Own(similarity, sample, regressor)
    own.check(ridge)
    game = players(subject, units)
    if sample is None:
        drawn = bool((game.numbers.counts >= samples.bit_length()).any())
        groups = game.grouped(lambda n, row=0: at_random(subject, row, n, samples), seeded=drawn)
    else:
        groups = game.alone(lambda n, row: own.masks(game, n, row))
    played = game.play(groups)
    if ridge == 0 and sample is None and regressor is None:
        _warn_if_few(game, samples - 1, samples)
    fitted = []
    for group, v in zip(groups, played.scores, strict=True):
        z = group.drawn
        if similarity is None:
            weights = _kernel(z, width).expand(len(v), -1)
        else:
            weights = torch.stack([own.weights(game, z, row) for row in group.rows.tolist()])  # (rows, m)
        fitted.append(own.fitted(z, v, weights) if regressor is not None else _near(z, v, weights, ridge))
    return game.answer(played, fitted)


# ---- coalitions: nobody first, everybody last ----


def _by_kernel(subject: Subject, row: int, n: int, samples: int) -> tuple[Coalitions, tuple[Tensor, Tensor]]:
    """Coalitions (m, n) and their weights (m,); the two ends have none, being kept exactly."""
    z, weight = _with_weights(subject, row, n, samples)
    return listed(z, 0), (z, weight)


def _with_weights(subject: Subject, row: int, n: int, samples: int) -> tuple[Tensor, Tensor]:
    if 2**n <= samples:
        z = every(n).at(torch.arange(2**n, device="cpu"))
        kernel = [0.0] + [(n - 1) / (math.comb(n, s) * s * (n - s)) for s in range(1, n)] + [0.0]
        return z, torch.tensor(kernel, dtype=torch.float64, device="cpu")[z.sum(1)]
    draw, pairs = generator(subject, row), samples // 2 - 1
    s = torch.arange(1, n, dtype=torch.float64, device="cpu")
    size = 1 + torch.multinomial(1 / (s * (n - s)), pairs, replacement=True, generator=draw)
    order = torch.rand(pairs, n, generator=draw, dtype=torch.float64, device="cpu").argsort(1)
    half = order < size[:, None]  # a random permutation's first ones
    ends = torch.tensor([[False], [True]], device="cpu").expand(2, n)
    z = torch.cat([ends[:1], half, ~half, ends[1:]])
    weight = torch.ones(len(z), dtype=torch.float64, device="cpu")
    weight[0] = weight[-1] = 0
    return z, weight


def at_random(subject: Subject, row: int, n: int, samples: int) -> tuple[Coalitions, Tensor]:
    """Masks (m, n), the whole input among them."""
    if 2**n <= samples:
        z = every(n).at(torch.arange(2**n, device="cpu"))
        return listed(z, 0), z
    z = torch.rand(samples, n, generator=generator(subject, row), device="cpu") < 0.5
    z[-1] = True
    return listed(z), z


def _warn_if_few(game: Players, directions: int, samples: int) -> None:
    """Samples that cannot determine the model's numbers; a mask and its complement speak of one direction."""
    most = game.numbers.most
    if 2**most > samples and directions <= most:
        warn(
            f"{game.subject.method}: {samples} samples cannot tell {{units}} units apart, so the smallest of many "
            "solutions was taken. Give more samples, or coarser units (units=8: blocks of 8 × 8 pixels).",
            units=most,
        )


# ---- least squares, in float64 ----


def _constrained(z: Tensor, weight: Tensor, v: Tensor) -> Tensor:
    """φ (rows, n, k) with Σφ = v(everybody) − v(nobody): an equal share for each, and what is left by least squares.

    Rows z − |z|/n sum to 0, so the smallest solution does too.
    """
    n, whole = z.shape[1], v[:, -1:] - v[:, :1]
    present = z.double().mean(1, keepdim=True)  # |z| / n
    left = _least(z.double() - present, v - v[:, :1] - present * whole, weight)
    return whole / n + left - left.mean(1, keepdim=True)


def _kernel(z: Tensor, width: float) -> Tensor:
    """The weight of each mask (m,), by its cosine distance from the whole input."""
    distance = 1 - z.double().mean(1).sqrt()
    return torch.exp(-((distance / width) ** 2))


def _near(z: Tensor, v: Tensor, weights: Tensor, ridge: float) -> Tensor:
    """φ (rows, n, k) of the model b + φ·z, for weights (rows, m); b drops out when both sides are centred."""
    if len(weights) > 1 and not bool((weights == weights[:1]).all()):
        return torch.cat([_near(z, v[i : i + 1], weights[i : i + 1], ridge) for i in range(len(v))])
    weight = weights[0]
    share = weight[:, None] / weight.sum()
    return _least(z.double() - (share * z).sum(0), v - (share * v).sum(1, keepdim=True), weight, ridge)


def _least(a: Tensor, y: Tensor, weight: Tensor, ridge: float = 0.0) -> Tensor:
    """The smallest x that minimises Σ weight·(a x − y)² + ridge·|x|², for each of y (rows, m, k): (rows, n, k)."""
    rows, _, k = y.shape
    found = _solved(a * weight.sqrt()[:, None], (y * weight.sqrt()[:, None]).movedim(1, 0).flatten(1), ridge)
    return found.view(-1, rows, k).movedim(0, 1)


def _solved(a: Tensor, y: Tensor, ridge: float) -> Tensor:
    if ridge == 0:
        return torch.linalg.lstsq(a, y, driver="gelsd").solution
    if len(a) < a.shape[1]:
        return a.T @ torch.linalg.solve(a @ a.T + ridge * torch.eye(len(a), dtype=a.dtype, device=a.device), y)
    return torch.linalg.solve(a.T @ a + ridge * torch.eye(a.shape[1], dtype=a.dtype, device=a.device), a.T @ y)
