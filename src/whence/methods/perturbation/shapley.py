"""Shapley values: each unit's mean contribution over all orders in which the units can come in."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from torch import Tensor

from whence.methods import method
from whence.methods.answer import Answer
from whence.methods.perturbation.coalitions import Coalitions, every, players
from whence.registry import Bounds
from whence.subject import Subject
from whence.subject.noise import generator


@method(
    "shapley",
    paper="Shapley 1953; sampled as in Castro, Gómez & Tejada 2009, doi:10.1016/j.cor.2008.04.004",
    order=130,
    aliases=("shapley_values", "shapley_value_sampling"),
    propagates=False,
    reference=True,
    complete="exactly",
)
def shapley(
    subject: Subject,
    *,
    units: Any = "auto",
    exact: Annotated[int, Bounds(low=1, high=20)] = 16,
    samples: Annotated[int, Bounds(low=2)] = 5,
) -> Answer:
    """Each unit's mean contribution, φᵢ = Σ_S |S|!(n−|S|−1)!/n! · (f(S ∪ i) − f(S)), S at the input, the rest at x'.

    Up to `exact` units a row takes all 2ⁿ coalitions; beyond, `samples` random orders, each walked from both ends
    (2 + 2·samples·(n − 1) evaluations), and `kept["standard_error"]` says how far each value may be off. A unit's
    value is shared equally among its elements, so that values sum to f(x) − f(x').
    """
    game = players(subject, units)

    def coalitions(n: int, row: int) -> tuple[Coalitions, Tensor | None]:
        ranks = None if n <= exact else _ranks(subject, row, n, samples)
        return every(n) if ranks is None else _walks(ranks), ranks

    sampled = bool((game.numbers.counts > exact).any())
    groups = game.grouped(coalitions if sampled else lambda n: coalitions(n, 0), seeded=sampled)
    played = game.play(groups)
    estimates = [
        _exact(v) if group.drawn is None else _sampled(v, group.drawn)
        for v, group in zip(played.scores, groups, strict=True)
    ]
    means, errors = [mean for mean, _ in estimates], [error for _, error in estimates]
    return game.answer(played, means, shared=True, starts=True, extras={"standard_error": errors})


def _exact(v: Tensor) -> tuple[Tensor, Tensor]:
    """From the scores of all coalitions (rows, 2ⁿ, k): the values (rows, n, k), and their error, which is 0."""
    rows, count, k = v.shape
    n = count.bit_length() - 1
    size = every(n).at(torch.arange(count, device="cpu")).sum(1)  # |S|
    weight = torch.tensor([1 / (n * math.comb(n - 1, s)) for s in range(n)] + [0.0], dtype=v.dtype, device="cpu")[size]
    values = []
    for i in range(n):
        pairs = v.view(rows, -1, 2, 2**i, k)  # without and with player i
        without = weight.view(-1, 2, 2**i, 1)[:, 0]
        values.append((without * (pairs[:, :, 1] - pairs[:, :, 0])).sum((1, 2)))
    return torch.stack(values, 1), torch.zeros(rows, n, k, dtype=v.dtype, device="cpu")


# ---- by random orders ----


def _ranks(subject: Subject, row: int, n: int, samples: int) -> Tensor:
    """When each player comes in, (2·samples, n): the orders, then the same backwards."""
    draw = generator(subject, row)
    ranks = torch.stack([torch.randperm(n, generator=draw, device="cpu") for _ in range(samples)])
    return torch.cat([ranks, n - 1 - ranks])


def _walks(ranks: Tensor) -> Coalitions:
    """Nobody, then every walk's coalitions of 1 to n − 1 players, then everybody."""
    walks, n = ranks.shape
    count = 2 + walks * (n - 1)

    def at(which: Tensor) -> Tensor:
        size = (which - 1) % (n - 1) + 1
        size[which == 0], size[which == count - 1] = 0, n
        walk = ((which - 1) // (n - 1)).clamp(0, walks - 1)
        return ranks[walk] < size[:, None]

    return Coalitions(count, at, 0)


def _sampled(v: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
    """The mean contribution of each player and its standard error, (rows, n, k) each, from v (rows, coalitions, k).

    A walk and its mirror are one draw.
    """
    walks, n = ranks.shape
    rows, _, k = v.shape
    ends = [end[:, None].expand(rows, walks, 1, k) for end in (v[:, :1], v[:, -1:])]
    path = torch.cat([ends[0], v[:, 1:-1].view(rows, walks, n - 1, k), ends[1]], 2)  # (rows, walks, n + 1, k)
    gain = path.diff(dim=2).take_along_dim(ranks[None, :, :, None], 2)  # by player
    draws = gain.unflatten(1, (2, -1)).mean(1)
    return draws.mean(1), draws.std(1) / math.sqrt(draws.shape[1])
