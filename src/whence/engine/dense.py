"""Dense layers of many positions: their derivative is taken at the positions that have a signal.

In the last layers these are few: the row at which the score is read, the token that is explained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.engine.nodes import Node
from whence.engine.trackers import Op

_MANY = 8  # positions of which it pays to look for those that have a signal
_WORK = 1 << 24  # multiplications, below which a node of our own costs more than it saves


def matrix_of(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], x: Tensor
) -> tuple[Tensor, Tensor | None] | None:
    """Weight (outputs, inputs) and bias of a product of positions with a matrix; None where it is another op."""
    if kwargs or not all(isinstance(a, Tensor | None) for a in args):
        return None
    if name == "linear" and len(args) > 1 and args[0] is x:
        return args[1], args[2] if len(args) > 2 else None
    if name == "addmm" and len(args) == 3 and args[1] is x and args[0].dim() == 1 and args[0].dtype == x.dtype:
        return args[2].mT, args[0]
    if name in ("matmul", "mm") and len(args) == 2 and args[0] is x and x.dim() > 1 and args[1].dim() == 2:
        return (args[1].mT, None) if args[1].dtype == x.dtype else None
    return None


def positions(signal: Tensor) -> Tensor | None:
    """Of (positions, …), those that have a signal, where they are few."""
    count = signal.shape[0]
    if count < _MANY or 2 * int(signal[:, 0].count_nonzero()) >= count:
        return None
    return torch.linalg.vector_norm(signal, 1, dim=1).nonzero().flatten()


def run(op: Op) -> Any:
    """Run a linear op that is left to autograd; a large dense layer in a node that looks where its signal is."""
    if len(op.live) != 1 or op.loose or op.target is not None:
        return op.func(*op.args, **op.kwargs)
    (x,) = op.live
    found = matrix_of(op.name, op.args, op.kwargs, x) if x.requires_grad and torch.is_grad_enabled() else None
    if found is None or not _pays(x, *found):
        return op.func(*op.args, **op.kwargs)
    return _Dense.apply(op, found[0], x)


def _pays(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    plain = weight.dim() == 2 and weight.layout == torch.strided and x.is_floating_point() and x.dtype == weight.dtype
    constant = not weight.requires_grad and (bias is None or not bias.requires_grad)
    count = x.numel() // max(1, x.shape[-1])
    large = count >= _MANY and count * weight.numel() >= _WORK
    return plain and constant and large and not torch.is_autocast_enabled(x.device.type)


class _Dense(Node):
    @staticmethod
    def forward(ctx: Any, op: Op, weight: Tensor, x: Tensor) -> Any:
        ctx.save_for_backward(weight)
        ctx.shape = x.shape
        ctx.set_materialize_grads(False)
        return op.func(*op.args, **op.kwargs)

    @staticmethod
    def backward(ctx: Any, m: Tensor | None) -> Any:
        if m is None:
            return None, None, None
        (weight,) = ctx.saved_tensors
        rows = m.reshape(-1, m.shape[-1])
        seen = positions(rows)
        if seen is None:
            return None, None, (rows @ weight).view(ctx.shape)
        whole = weight.new_zeros(len(rows), weight.shape[1]).index_copy(0, seen, rows[seen] @ weight)
        return None, None, whole.view(ctx.shape)
