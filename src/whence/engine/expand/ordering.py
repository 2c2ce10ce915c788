"""Sorting, top-k, medians and extremes: networks of pairs, each a minimum and a maximum."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whence.engine.expand import expansion


class Ranked(NamedTuple):
    """What sort, topk, median and their kin give."""

    values: Tensor
    indices: Tensor


class Extremes(NamedTuple):
    min: Tensor
    max: Tensor


@expansion("sort")
def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Ranked:
    own = _of_its_own(torch.sort, input, dim=dim, descending=descending, stable=stable)
    x = input.movedim(dim, -1)
    values = _in_order(_padded(x, 1 << max(0, x.shape[-1] - 1).bit_length(), math.inf))[..., : x.shape[-1]]
    return _ranked(values.flip(-1) if descending else values, own, dim)


@expansion("msort")
def msort(input: Tensor) -> Tensor:
    return sort(input, 0).values


@expansion("topk")
def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Ranked:
    own = _of_its_own(torch.topk, input, k, dim, largest, sorted)
    x = input.movedim(dim, -1)
    return _ranked(_largest(x, k) if largest else -_largest(-x, k), own, dim, sorted)


@expansion("kthvalue")
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Ranked:
    own = _of_its_own(torch.kthvalue, input, k, dim, keepdim)
    values = -_largest(-input.movedim(dim, -1), k)[..., -1:].movedim(-1, dim)
    return Ranked(values if keepdim else values.squeeze(dim), own.indices)


@expansion("median")
def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None:
        return kthvalue(input.flatten(), (input.numel() + 1) // 2, 0).values
    own = _of_its_own(torch.median, input, dim, keepdim)
    return Ranked(kthvalue(input, (input.shape[dim] + 1) // 2, dim, keepdim).values, own.indices)


@expansion("aminmax")
def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Extremes:
    axes = () if dim is None else (dim,)
    return Extremes(input.amin(axes, keepdim), input.amax(axes, keepdim))


@expansion("clamp", "clip", when=lambda args, kwargs, live: len(live) > 1)
def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """With bounds that are live."""
    for bound, pick in ((min, torch.maximum), (max, torch.minimum)):
        if bound is not None:
            input = pick(input, torch.as_tensor(bound, dtype=input.dtype, device=input.device))
    return input


def _in_order(x: Tensor, block: int = 1) -> Tensor:
    """Ascending along the last axis, whose length is a power of two; blocks of some length may be in order already."""
    while block < x.shape[-1]:
        x = x.unflatten(-1, (-1, 2 * block))
        low, high = x[..., :block], x[..., block:].flip(-1)
        x = torch.cat([torch.minimum(low, high), torch.maximum(low, high).flip(-1)], -1)
        step = block // 2
        while step:  # each half is bitonic now
            x = x.unflatten(-1, (-1, 2, step))
            low, high = x[..., 0, :], x[..., 1, :]
            x = torch.stack([torch.minimum(low, high), torch.maximum(low, high)], -2).flatten(-3)
            step //= 2
        x = x.flatten(-2)
        block *= 2
    return x


def _padded(x: Tensor, length: int, value: float) -> Tensor:
    rest = x.new_full((*x.shape[:-1], length - x.shape[-1]), value)
    return torch.cat([x, rest], -1) if rest.shape[-1] else x


def _largest(x: Tensor, k: int) -> Tensor:
    """The k largest along the last axis, largest first: blocks in order, of which each round keeps the better half."""
    size = 1 << (k - 1).bit_length()
    blocks = 1 << (max(1, -(-x.shape[-1] // size)) - 1).bit_length()
    x = _in_order(_padded(x, size * blocks, -math.inf).unflatten(-1, (blocks, size)))
    while x.shape[-2] > 1:
        x = torch.maximum(x[..., ::2, :], x[..., 1::2, :].flip(-1))
        x = _from_bitonic(x)
    return x[..., 0, :].flip(-1)[..., :k]


def _from_bitonic(x: Tensor) -> Tensor:
    step = x.shape[-1] // 2
    while step:
        y = x.unflatten(-1, (-1, 2, step))
        low, high = y[..., 0, :], y[..., 1, :]
        x = torch.stack([torch.minimum(low, high), torch.maximum(low, high)], -2).flatten(-3)
        step //= 2
    return x


def _ranked(values: Tensor, own: Any, dim: int, in_order: bool = True) -> Ranked:
    """Values by the network, in the places where the op itself has them."""
    values, theirs = values.movedim(-1, dim), own.values
    if not in_order:
        order = theirs.argsort(dim=dim, stable=True).argsort(dim=dim)
        values = values.gather(dim, values.detach().argsort(dim=dim, stable=True).gather(dim, order))
    return Ranked(values, own.indices)


def _of_its_own(function: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """What the op itself gives, unseen by the mode."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        return function(input.detach(), *args, **kwargs)
