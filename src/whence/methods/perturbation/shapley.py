"""Shapley values: each unit's mean contribution over all orders in which the units can come in."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from torch import Tensor

from whence.methods import method
from whence.methods.answer import Answer
from whence.methods.perturbation.coalitions import Coalitions, counted, every, players
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
    complete=True,
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
    ranks = [None if n <= exact else _ranks(subject, row, n, samples) for row, n in enumerate(game.counts)]
    asked = [every(n) if rank is None else _walks(rank) for n, rank in zip(game.counts, ranks, strict=True)]
    scores = game.evaluate(asked)
    estimates = [_exact(v) if rank is None else _sampled(v, rank) for v, rank in zip(scores, ranks, strict=True)]
    return Answer(
        game.spread([mean for mean, _ in estimates], shared=True),
        start_score=game.empty_score(scores),
        extras={"standard_error": game.spread([error for _, error in estimates], shared=True)},
        per_row=counted(scores),
    )


def _exact(v: Tensor) -> tuple[Tensor, Tensor]:
    """From the scores of all coalitions (2ⁿ, k): the values (n, k), and their error, which is 0."""
    n = len(v).bit_length() - 1
    size = every(n).at(torch.arange(len(v), device=v.device)).sum(1)  # |S|
    weight = torch.tensor([1 / (n * math.comb(n - 1, s)) for s in range(n)] + [0.0], dtype=v.dtype, device=v.device)
    values = []
    for i in range(n):
        pairs = v.view(-1, 2, 2**i, v.shape[1])  # without and with player i
        without = size.view(-1, 2, 2**i)[:, 0]
        values.append((weight[without][..., None] * (pairs[:, 1] - pairs[:, 0])).sum((0, 1)))
    return torch.stack(values), torch.zeros(n, v.shape[1], dtype=v.dtype, device=v.device)


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

    return Coalitions(count, at)


def _sampled(v: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
    """The mean contribution of each player and its standard error, (n, k) each; a walk and its mirror are one draw."""
    walks, n = ranks.shape
    k = v.shape[1]
    inner = v[1:-1].view(walks, n - 1, k)
    path = torch.cat([v[:1].expand(walks, 1, k), inner, v[-1:].expand(walks, 1, k)], 1)  # (walks, n + 1, k)
    gain = path.diff(dim=1).take_along_dim(ranks[:, :, None], 1)  # (walks, n, k), by player
    draws = gain.unflatten(0, (2, -1)).mean(0)
    return draws.mean(0), draws.std(0) / math.sqrt(len(draws))
