"""How few units an explanation needs: the Gini index and the entropy of |φ|."""

from __future__ import annotations

import torch

from whence.evaluation.metrics import metric
from whence.evaluation.requests import Result, View


@metric("sparseness", order=84, paper="Chalasani et al. 2020, arXiv:1810.06583", better="higher", within=(0, 1))
def sparseness(view: View) -> Result:
    """The Gini index of |φ|: 0 where all units get the same, 1 − 1/n where one of n has all.

    Σ (2i − n − 1)·|φ|₍ᵢ₎ / (n·Σ|φ|), over |φ| in ascending order.
    """
    sizes = view.scores[view.example.free].abs().sort().values
    count, whole = len(sizes), float(sizes.sum())
    if whole == 0:
        return Result(float("nan"))
    rank = torch.arange(1, count + 1, dtype=torch.float64, device="cpu")
    return Result(float(((2 * rank - count - 1) * sizes).sum()) / (count * whole))


@metric("complexity", order=84, paper="Bhatt, Weller & Moura 2020, arXiv:2005.00631", better="lower", within=(0, None))
def complexity(view: View) -> Result:
    """The entropy of |φ| / Σ|φ| in nats: 0 where one unit has all, ln n where all get the same."""
    sizes = view.scores[view.example.free].abs()
    whole = float(sizes.sum())
    return Result(float(torch.special.entr(sizes / whole).sum()) if whole else float("nan"))
