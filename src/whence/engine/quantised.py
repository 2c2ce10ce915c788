"""Layers with weights of a few bits as the linear maps that they compute, y = W·x + b.

Their kernels round what they get, so that autograd takes their derivative for 0 or has none. Where such a layer gives
what a dense one with its weights gives, up to that rounding, the dense one runs in its place; the receipt names it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.engine.expand import expansion

Layer = Callable[[Tensor], Tensor]
DYNAMIC = ("quantized::linear_dynamic", "quantized::linear_dynamic_fp16")
BYTES = frozenset({torch.int8, torch.uint8})  # of weights, and of values that were rounded
_NEAR = 0.1  # how far rounding may take a layer from its linear map, relative to what the map gives
_ROWS = 1024  # unit vectors in one call


@expansion(*DYNAMIC)
def dynamic(x: Tensor, packed: Any, *options: Any, **named: Any) -> Tensor:
    """torch.ao's layers, whose weights can be unpacked."""
    weight, bias = torch.ops.quantized.linear_unpack(packed)
    whole = weight.dequantize() if weight.is_quantized else weight.float()
    return F.linear(x, whole.to(x.dtype), bias)


def as_dense(layer: Layer, x: Tensor) -> tuple[Tensor, Tensor] | None:
    """The weight (outputs, inputs) and the bias of a layer, read off unit vectors; None if it is not a linear map."""
    x = x.detach()
    if not x.is_floating_point() or not x.numel() or x.dim() < 2:
        return None
    size = x.shape[-1]
    try:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            bias = layer(x.new_zeros(1, size))[0]
            units = torch.eye(size, dtype=x.dtype, device=x.device)
            columns = torch.cat([layer(some) for some in units.split(_ROWS)])  # (inputs, outputs)
            weight = (columns - bias).mT.contiguous()
            return (weight, bias) if near(layer(x), F.linear(x, weight, bias), bias) else None
    except Exception:  # it does not take vectors, or gives something else than one for each
        return None


def near(own: Tensor, linear: Tensor, bias: Tensor | None) -> bool:
    """Whether what a layer gives is what its linear map gives, up to rounding."""
    if own.shape != linear.shape:
        return False
    size = torch.linalg.vector_norm((linear if bias is None else linear - bias).float())
    return bool(torch.linalg.vector_norm((own - linear).float()) <= _NEAR * size)
