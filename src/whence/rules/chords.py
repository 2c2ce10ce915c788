"""Rules between neighbouring rows of one pass: each row is a point of a path, and takes an op's chord to the next row.

Between two points of a path an elementwise function takes (g(b) − g(a)) / (b − a), as in Rescale (Shrikumar et al.
2017): the part of the way for which a ReLU is open, wherever its kink lies. What the rows' signals are worth times the
step to the next row then sums to the rise of the score, which tells whether these rules were right for a model. The
last row of a path has no next one, and its signal means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from whence.engine.call import Back, Call, Gradients, Rule, derivative
from whence.engine.nodes import Ahead
from whence.engine.ops import FAMILIES
from whence.rules.rescale import replaced_where, slope
from whence.util.tree import tensors_in

FOLLOWED = frozenset(  # families that these rules can be right for; all but the last group are linear maps, or views
    {family for group in ("view", "linear", "elementwise") for family in FAMILIES[group]} | {"max_pool"}
)


def chords(rows: int) -> dict[str, Rule]:
    """The table for a pass of so many rows, which can be pulled once."""
    scratch: list[Tensor] = []

    def chord(call: Call) -> Back:
        """y = g(x) elementwise: Δy/Δx to the next row."""
        if len(call.inputs) != 1 or not _by_rows(call.inputs[0], rows) or not _by_rows(call.outputs[0], rows):
            return lambda m: call.derivative_at(call.inputs, m)
        top = math.inf if call.family == "relu" else _top(call) if call.family == "relu6" else None
        slopes = _slopes(call, scratch) if top is None else _open_part(call.inputs[0], top)
        call.args, call.kwargs, call.inputs, call.outputs = (), {}, (), ()  # the output holds its call: free the input
        return slopes.mul_

    def switching(call: Call, m: Gradients) -> Gradients:
        """A maximum of a and later b: a until they meet, and b from there."""
        if not isinstance(m, Tensor) or not _by_rows(call.inputs[0], rows):
            return call.vjp(m)
        (x,), y = call.x, call.y
        ahead, behind = _at_maxima(call, [torch.roll(x, shift, 0) for shift in (-1, 1)])  # beside each row's arg-max
        first, second = y - torch.roll(behind, -1, 0), torch.roll(y, -1, 0) - ahead  # how far b is below, then a
        until = torch.where(first + second > 0, first / (first + second), torch.ones_like(first))
        (ours,), (theirs,) = call.vjp(m * until), call.vjp(torch.roll(m * (1 - until), 1, 0))
        assert ours is not None
        assert theirs is not None
        return ours + torch.roll(theirs, -1, 0)

    return {
        "*": derivative,
        "elementwise": Ahead(chord),
        "max_pool": switching,
        "convolution": Ahead(_by_weights),
        "batch_norm": Ahead(_by_scales),
    }


def _at_maxima(call: Call, others: Sequence[Tensor]) -> list[Tensor]:
    """Other tensors' entries where the op's input has its maxima: the transpose of its derivative, which puts them
    there."""
    with torch.enable_grad():
        start = torch.zeros_like(call.outputs[0], requires_grad=True)
        (back,) = torch.autograd.grad(call.outputs[0], call.inputs[0], start, create_graph=True)
    return [torch.autograd.grad(back, start, other, retain_graph=True)[0] for other in others]


def _by_rows(tensor: Tensor, rows: int) -> bool:
    return tensor.dim() > 0 and len(tensor) == rows and tensor.is_floating_point()


def _by_weights(call: Call) -> Back:
    """A convolution: its transpose, for which the input need not be kept."""
    x, args = call.inputs[0], call.args
    plain = call.name in _CONVOLUTIONS and len(args) == 7 and not call.kwargs and not isinstance(args[4], str)
    if not plain or len(call.inputs) > 1 or args[0] is not x or x.dim() != args[1].dim():
        return lambda m: call.derivative_at(call.inputs, m)
    shape, weight, dims = x.shape, args[1], x.dim() - 2
    stride, padding, dilation = ([n] * dims if isinstance(n, int) else list(n) for n in args[3:6])
    groups = args[6]

    def back(m: Tensor) -> Tensor:
        like = m.new_empty(1).expand(shape)
        options = (None, stride, padding, dilation, False, [0] * dims, groups, (True, False, False))
        back: Tensor = torch.ops.aten.convolution_backward(m, like, weight, *options)[0]
        return back

    call.args, call.inputs, call.outputs = (), (), ()
    return back


def _by_scales(call: Call) -> Back:
    """A batch normalisation by what it has learned: one factor for each channel."""
    x, args = call.inputs[0], call.args
    if len(call.inputs) > 1 or len(args) < 8 or args[0] is not x or args[2] is None:
        return lambda m: call.derivative_at(call.inputs, m)
    scale = (args[2] + args[7]).rsqrt()
    scale = (scale if args[3] is None else scale * args[3]).view(-1, *[1] * (x.dim() - 2))
    call.args, call.inputs, call.outputs = (), (), ()
    return lambda m: m * scale


def _top(call: Call) -> float | None:
    """Where a function that is 0 below 0 and x above it stops to rise."""
    top = call.value_at([call.inputs[0].new_full((), math.inf)])
    return float(top) if top.dim() == 0 else None


def _open_part(x: Tensor, top: float) -> Tensor:
    """The part of each step that lies between 0 and `top`: p / max(p, |Δx|) with p what the upper end is above 0.

    No difference cancels. What has many entries goes block by block, so that only its ends leave the cache.
    """
    part = torch.empty_like(x)
    part[-1] = 0
    wide = x.numel() > _BLOCK and x.is_contiguous()
    ends, there = (x.view(len(x), -1), part.view(len(x), -1)) if wide else (x, part)
    size = max(1, _BLOCK // len(x)) if wide else max(1, len(x))
    blocks = zip(ends.split(size, 1), there.split(size, 1), strict=True) if wide else [(ends, there)]
    for some, found in blocks:
        _open_block(some[:-1], some[1:], top, found[:-1])
    return part


def _open_block(before: Tensor, after: Tensor, top: float, out: Tensor) -> None:
    step, upper = (after - before).abs_().clamp_(min=torch.finfo(out.dtype).tiny), torch.maximum(before, after)
    above = upper.clamp(min=0)
    torch.div(above, torch.maximum(step, above), out=out)
    if top < math.inf:
        beyond = upper.sub_(top).clamp_(min=0)
        out -= beyond.div_(torch.maximum(step, beyond))


def _room(scratch: list[Tensor], like: Tensor) -> Tensor:
    """Memory that is used again for every op of a pass: fresh pages cost more than the arithmetic on them."""
    if not scratch or scratch[0].numel() < like.numel() or scratch[0].dtype != like.dtype:
        scratch[:] = [torch.empty(like.numel(), dtype=like.dtype, device=like.device)]
    return scratch[0][: like.numel()].view(like.shape)


def _slopes(call: Call, scratch: list[Tensor]) -> Tensor:
    """Δy/Δx, and the derivative where Δx is mostly rounding."""
    x, y = call.inputs[0], call.outputs[0]
    alone = sum(1 for _ in tensors_in([*call.args, *call.kwargs.values()])) == 1
    if call.family not in _PIECES or not alone:
        return slope(call, x, torch.roll(x, -1, 0), y, torch.roll(y, -1, 0))
    slopes = torch.empty_like(x)
    step = torch.sub(x[1:], x[:-1], out=_room(scratch, x[1:]))
    torch.sub(y[1:], y[:-1], out=slopes[:-1]).div_(step)
    slopes[-1] = 0
    if call.family == "leaky_relu":  # both ends are on one side of the kink if the step is this small
        near = step.abs() <= torch.finfo(x.dtype).eps ** (1 / 3) * x[1:].abs()
    else:
        near = step == 0
    replaced_where(call, near, slopes[:-1], [((x[1:], 1.0),)])
    return slopes


_PIECES = frozenset("relu6 clamp leaky_relu".split())  # made of straight pieces
_CONVOLUTIONS = frozenset("conv1d conv2d conv3d".split())
_BLOCK = 1 << 15  # entries
