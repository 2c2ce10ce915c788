"""Statistics that several rooms need, each written once: what is finite, the completeness gap, ranks."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def all_finite(values: Tensor) -> bool:
    """Whether no entry is infinite or NaN: a finite sum says so, and only where that overflows each is looked at."""
    return math.isfinite(values.detach().sum()) or bool(torch.isfinite(values).all())


def score_scale(score: Tensor, before: Tensor) -> Tensor:
    """max(|f(x) − f(x')|, 0.1·max(|f(x)|, |f(x')|)): what a gap is relative to, also where the score barely moves."""
    return torch.maximum((score - before).abs(), 0.1 * torch.maximum(score.abs(), before.abs()))


def completeness(total: Tensor, score: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """The residual Σφ − (f(x) − f(x')) and the gap, its size relative to `score_scale`, or as it is where that is 0."""
    residual, scale = total - (score - before), score_scale(score, before)
    return residual, residual.abs() / torch.where(scale > 0, scale, torch.ones_like(scale))


def centred_ranks(values: Tensor) -> Tensor:
    """The rank of each value minus the mean rank; ties share their mean rank."""
    _, inverse, counts = values.flatten().unique(return_inverse=True, return_counts=True)
    ranks: Tensor = (counts.cumsum(0).double() - (counts.double() - 1) / 2)[inverse]
    return ranks - ranks.mean()


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """The correlation of centred numbers along the last dimension; NaN where one of the two is constant."""
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


def spearman(a: Tensor, b: Tensor) -> float:
    """Spearman's rank correlation; NaN where one of the two is constant."""
    return float(correlation(centred_ranks(a).cpu(), centred_ranks(b).cpu()))
