"""The rule that any op can take between its reference and its input: its derivative, averaged over the line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import Call, Gradients
from whence.engine.ops import GROUP
from whence.util.quadrature import fixed

_POINTS = {"norm": 64, "max": 256}  # maxima and order statistics have kinks, norms a steep middle
_DEFAULT_POINTS = 32


def path_integral(call: Call, m: Any) -> Gradients:
    """Rule: the op's own derivative averaged over the straight line from its reference to its input.

    m·Δy = Σ_j ∫ m·∂y/∂x_j dα · Δx_j, so nothing is lost but the quadrature's error. The number of points depends on the
    kind of op alone, never on the batch: a row gets the same alone and among others.
    """
    gradients = path_average(call, m, _POINTS.get(GROUP.get(call.family, ""), _DEFAULT_POINTS))
    if call.lose is not None:
        call.lose(_unshared(call, m, gradients))
    return gradients


path_integral.generic = True  # type: ignore[attr-defined]


def _unshared(call: Call, m: Any, gradients: Sequence[Tensor]) -> float:
    """|m·Δy − Σ m_x·Δx| over all entries: what the quadrature missed of one output's rise."""
    m = m if isinstance(m, Tensor) else m[0]
    if m is None or any(t.is_complex() for t in (m, *gradients)):
        return 0.0
    rise = (m * torch.nan_to_num(call.y - call.reference_y)).double().sum()
    steps = zip(gradients, call.x, call.reference_x, strict=True)
    return abs(float(rise - sum((g * torch.nan_to_num(x - r)).double().sum() for g, x, r in steps)))


def path_average(call: Call, m: Any, points: int) -> list[Tensor]:
    """What the op's derivative makes of m, averaged over so many points between its reference and its input."""
    here, before = call.x, call.reference_x
    total = [torch.zeros_like(x) for x in here]
    nodes, weights = fixed("gauss_legendre", points)
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        point = [torch.where(x == b, x, b + node * (x - b)) for x, b in zip(here, before, strict=True)]  # -inf stays
        for sum_, g in zip(total, call.derivative_at(point, m), strict=True):
            if g is not None:
                sum_ += weight * g
    return total
