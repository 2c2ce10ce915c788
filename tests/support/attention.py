"""Attention written out by hand."""

from __future__ import annotations

from torch import Tensor


def heads(t: Tensor) -> Tensor:
    return t.unflatten(-1, (2, -1)).transpose(1, 2)


def joined(t: Tensor) -> Tensor:
    return t.transpose(1, 2).flatten(2)
