"""Rules for a short piece of a line: each op's derivative averaged over the piece, its inputs moving evenly.

Multiplied along the graph, these averages share the rise of the score among the inputs with nothing lost; as pieces
shrink their sum tends to the integral of the gradient. A ReLU's kink is met exactly: the average of its step is the
fraction of the piece during which it was open. What is left is that ops switch together within a piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import Call, Gradients, Rule, derivative, flatten, swapped
from whence.engine.ops import FAMILIES
from whence.engine.reference import path_average
from whence.engine.secant import scaled, switch

KINKED = frozenset(
    "relu relu6 leaky_relu hardswish hardsigmoid softshrink hardshrink abs max_pool max sort rnn".split()
)


def slope(call: Call, m: Tensor) -> Gradients:
    """An elementwise function with kinks: Δy/Δx, and its derivative where Δx is 0."""
    if len(call.inputs) != 1:
        return few(call, m)
    step = call.x[0] - call.reference_x[0]
    still = step == 0
    average = m * ((call.y - call.reference_y) / step.masked_fill(still, 1))
    if not bool(still.any()):
        return average
    there = call.vjp(m)[0]
    return torch.where(still, 0 if there is None else there, average)


def contenders(call: Call, m: Any) -> Gradients:
    """A maximum: the reference's winner until the two meet, the input's winner from there."""
    if call.family == "sort" or call.name in ("median", "nanmedian", "kthvalue", "mode", "cummax", "cummin", "aminmax"):
        return few(call, m)
    x, before = call.x, tuple(r.expand_as(x) for r, x in zip(call.reference_x, call.x, strict=True))
    lost = call.reference_y - _chosen(call, x, before)  # the old winner's lead at the start
    won = call.y - _chosen(call, before, x)  # the new winner's lead at the end
    both = lost + won
    until = torch.where(both == 0, torch.ones_like(both), lost / both.masked_fill(both == 0, 1))
    old = call.derivative_at(before, scaled(m, until))
    new = call.vjp(scaled(m, 1 - until))
    return [_sum(a, b) for a, b in zip(old, new, strict=True)]


def _chosen(call: Call, at: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """The values at the places which the maximum chooses at other inputs: its derivative there, applied to them."""
    with torch.enable_grad():
        inputs = tuple(t.detach().clone().requires_grad_() for t in at)
        swap = {id(x): new for x, new in zip(call.inputs, inputs, strict=True)}
        outputs: list[Tensor] = []
        flatten(call.function(*swapped(call.args, swap), **swapped(call.kwargs, swap)), outputs)
        dual = torch.zeros_like(outputs[0], requires_grad=True)
        back = torch.autograd.grad(outputs[0], inputs, dual, create_graph=True)
    return torch.autograd.grad(back, dual, [v.contiguous() for v in values])[0]


def few(call: Call, m: Any) -> Gradients:
    """Any other op: three points of its own path, which a smooth op's short piece asks no more than."""
    return path_average(call, m, 3)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


PANEL_RULES: dict[str, Rule] = {
    "*": few,
    "view": derivative,
    "linear": derivative,
    **{family: slope for family in KINKED | {"clamp"} if family in FAMILIES["elementwise"]},
    "max_pool": contenders,
    "max": contenders,
    "where": switch,
}
