"""Norms of vectors, distances, similarities and losses."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.engine.expand import When, expansion


def _sum_or_maximum(args: Any, kwargs: Any, live: Sequence[Tensor]) -> bool:
    """‖x‖₁ or ‖x‖∞ of real numbers."""
    order = kwargs.get("p", kwargs.get("ord", args[1] if len(args) > 1 else None))
    return order in (1, math.inf) and not args[0].is_complex()


@expansion("norm", "linalg_vector_norm", when=_sum_or_maximum)
def norm_of(
    x: Tensor, p: Any = None, dim: Any = None, keepdim: bool = False, out: None = None, dtype: Any = None
) -> Any:
    """‖x‖₁ and ‖x‖∞ by their magnitudes."""
    axes = tuple(range(x.dim())) if dim is None else dim
    size = x.abs()
    return size.sum(axes, keepdim=keepdim) if p == 1 else size.amax(axes, keepdim=keepdim)


@expansion("cosine_similarity")
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """(a / max(‖a‖, ε)) · (b / max(‖b‖, ε))."""
    a, b = (t / t.square().sum(dim, keepdim=True).sqrt().clamp_min(eps) for t in (x1, x2))
    return (a * b).sum(dim)


@expansion("pairwise_distance")
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim=keepdim)


_WEIGHTING = ("weight", "pos_weight", "label_smoothing", "size_average", "reduce")


def _plain(loss: Callable[..., Tensor]) -> When:
    """Whether this loss is called without weights or smoothing."""
    names = tuple(inspect.signature(loss).parameters)

    def when(args: Any, kwargs: Any, live: Sequence[Tensor]) -> bool:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        plain = all(not isinstance(given.get(name), Tensor) and not given.get(name) for name in _WEIGHTING)
        return plain and given.get("reduction", "mean") in ("mean", "sum", "none")

    return when


def _ids(args: Any, kwargs: Any, live: Sequence[Tensor]) -> bool:
    """Labels that are ids, each of them counted."""
    return _plain(F.cross_entropy)(args, kwargs, live) and not (
        args[1].is_floating_point() or bool((args[1] < 0).any())
    )


@expansion("cross_entropy", when=_ids)
def cross_entropy(
    input: Tensor, target: Tensor, weight: None = None, size_average: None = None, ignore_index: int = -100,
    reduce: None = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """−log_softmax(x) at the label."""
    losses = -torch.log_softmax(input, 1 if input.dim() > 1 else 0)
    at = target.unsqueeze(1) if input.dim() > 1 else target
    return _reduced(losses.gather(1 if input.dim() > 1 else 0, at).squeeze(1 if input.dim() > 1 else -1), reduction)


@expansion("binary_cross_entropy_with_logits", when=_plain(F.binary_cross_entropy_with_logits))
def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: None = None, size_average: None = None, reduce: None = None,
    reduction: str = "mean", pos_weight: None = None,
) -> Tensor:  # fmt: skip
    """softplus(x) − x·t."""
    return _reduced(-F.logsigmoid(-input) - input * target, reduction)


@expansion("l1_loss", when=_plain(F.l1_loss))
def l1_loss(
    input: Tensor, target: Tensor, size_average: None = None, reduce: None = None, reduction: str = "mean",
    weight: None = None,
) -> Tensor:  # fmt: skip
    return _reduced((input - target).abs(), reduction)


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses
