"""Normalisation: layers, and the statistics that come with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.engine.expand import expansion


def _plain(args: Any, kwargs: Any, live: Sequence[Tensor]) -> bool:
    """The signature of torch.nn.functional, not of a kernel."""
    return bool(args) and isinstance(args[0], Tensor) and "cudnn_enable" not in kwargs and len(args) < 7


@expansion("layer_norm", when=_plain)
def layer_norm(
    x: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    """(x − mean) / √(var + ε) · weight + bias over the last dimensions."""
    axes = tuple(range(-len(tuple(normalized_shape)), 0))
    return _affine(_centred(x, axes, eps), weight, bias)


@expansion("rms_norm", when=_plain)
def rms_norm(x: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """x / √(mean x² + ε) · weight over the last dimensions."""
    axes = tuple(range(-len(tuple(normalized_shape)), 0))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return _affine(x * torch.rsqrt(x.square().mean(axes, keepdim=True) + eps), weight, None)


@expansion("group_norm", when=_plain)
def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *_: Any
) -> Tensor:
    """Each group of channels centred and scaled by itself."""
    grouped = x.reshape(x.shape[0], num_groups, -1)
    return _per_channel(_centred(grouped, (-1,), eps).reshape(x.shape), weight, bias)


@expansion("instance_norm", when=_plain)
def instance_norm(
    x: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None = None,
    bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Each channel of each row centred and scaled by itself, or by the running statistics."""
    if not use_input_stats:
        assert running_mean is not None
        assert running_var is not None
        x = (x - _channels(running_mean, x)) * _channels(torch.rsqrt(running_var + eps), x)
        return _per_channel(x, weight, bias)
    return _per_channel(_centred(x, tuple(range(2, x.dim())), eps), weight, bias)


@expansion("normalize", when=_plain)
def normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None) -> Tensor:
    """x / max(‖x‖, ε)."""
    if p != 2:
        return x / torch.norm(x, p, dim, keepdim=True).clamp_min(eps)
    return x * x.square().sum(dim, keepdim=True).clamp_min(eps**2).sqrt().reciprocal()


@expansion("native_layer_norm")
def native_layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """With the mean and the scale that it divides by."""
    dims = tuple(range(-len(normalized_shape), 0))
    scale = torch.rsqrt(torch.var(input, dims, correction=0, keepdim=True) + eps)
    out = F.layer_norm(input, list(normalized_shape), weight, bias, eps)
    return out, torch.mean(input, dims, keepdim=True), scale


@expansion("var_mean")
def var_mean(input: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return torch.var(input, *args, **kwargs), _mean(input, *args, **kwargs)


@expansion("std_mean")
def std_mean(input: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return torch.std(input, *args, **kwargs), _mean(input, *args, **kwargs)


def _mean(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The mean over the axes for which a variance is asked."""
    dim = kwargs.get("dim", args[0] if args and not isinstance(args[0], bool) else None)
    keepdim = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
    return torch.mean(input, dim, keepdim=bool(keepdim))


def _centred(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    centred = x - x.mean(axes, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(axes, keepdim=True) + eps)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _channels(v: Tensor, x: Tensor) -> Tensor:
    return v.view(1, -1, *[1] * (x.dim() - 2))


def _per_channel(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return _affine(x, None if weight is None else _channels(weight, x), None if bias is None else _channels(bias, x))
