"""Small compositions: a gate, a softmax of −x, a bag of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.engine.expand import expansion


@expansion("glu")
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a · σ(b), the two halves."""
    a, b = input.chunk(2, dim)
    return a * torch.sigmoid(b)


@expansion("softmin")
def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    return F.softmax(-input, dim, dtype=dtype)


def _looked_up(args: Any, kwargs: Any, live: Sequence[Tensor]) -> bool:
    """embedding_bag(ids, table); older code calls it with the table first."""
    return not (args and isinstance(args[0], Tensor) and args[0].is_floating_point())


@expansion("embedding_bag", when=_looked_up)
def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """Look up, then sum, average or take the maximum over each bag; padding counts for nothing."""
    if input.dim() == 1:
        assert offsets is not None
        ends = offsets[1:] if include_last_offset else torch.cat([offsets[1:], offsets.new_tensor([len(input)])])
        starts = offsets[: len(ends)]
        weighed = per_sample_weights is not None
        bags = [
            embedding_bag(
                input[a:b].unsqueeze(0), weight, None, max_norm, norm_type, mode=mode, padding_idx=padding_idx,
                per_sample_weights=per_sample_weights[a:b].unsqueeze(0) if weighed else None,  # type: ignore[index]
            )
            for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
        ]  # fmt: skip
        return torch.cat(bags)
    looked = F.embedding(input, weight, None, max_norm, norm_type)  # (bags, n, hidden)
    real = torch.ones_like(input, dtype=torch.bool) if padding_idx is None else input != padding_idx % len(weight)
    if mode == "max":
        if input.shape[1] == 0:
            return looked.new_zeros(len(input), looked.shape[-1])
        best = looked.masked_fill(~real.unsqueeze(-1), float("-inf")).amax(1)
        return best.masked_fill(~real.any(1, keepdim=True), 0.0)
    if per_sample_weights is not None:
        looked = looked * per_sample_weights.unsqueeze(-1)
    total = (looked * real.unsqueeze(-1).to(looked.dtype)).sum(1)
    return total / real.sum(1, keepdim=True).clamp(min=1) if mode == "mean" else total
