"""Rules between a reference and an input: m·Δy is shared out among the inputs' Δx with nothing lost.

`REFERENCE_RULES` is what a reference method starts from: linear ops are autograd's, elementwise functions take their
secant, maxima and switches their own rules, and every other op the local path integral.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.engine.call import Call, Gradients, Rule, derivative
from whence.engine.ops import GROUP
from whence.engine.reference import path_integral

_KINKED = frozenset(
    "relu relu6 leaky_relu clamp abs hardswish hardsigmoid softshrink hardshrink round floor ceil".split()
)
_MAXIMA = frozenset("max amax maximum fmax".split())
_MINIMA = frozenset("min amin minimum fmin".split())


def secant(call: Call, m: Tensor) -> Gradients:
    """y = g(x) elementwise: Δy/Δx, and the derivative at the midpoint where Δx is too small to divide by."""
    if len(call.inputs) != 1 or call.inputs[0].is_complex():
        return path_integral(call, m)
    (x,), (before,) = call.x, call.reference_x
    step = _apart(x, before)
    middle = call.derivative_at([before + step / 2], m)[0]
    assert middle is not None
    tiny = 0.0 if call.family in _KINKED else torch.finfo(x.dtype).eps ** (1 / 3)
    near = step.abs() <= tiny
    rise = _apart(call.y, call.reference_y)
    return torch.where(near, middle, m * rise / step.masked_fill(near, 1))


def cross(call: Call, m: Any) -> Gradients:
    """A maximum: up to cross = max(y, y') the rise belongs to the input's arg-max, the rest to the reference's.

    Contributions of overlapping windows add before they are divided by Δx; at either arg-max Δx is at least as large as
    what it is given, so the quotient is bounded by 1. A minimum is the mirror image.
    """
    pool = GROUP[call.family] == "max" and call.family == "max_pool"
    if not (pool or call.name in _MAXIMA | _MINIMA):
        return path_integral(call, m)
    y, before = call.y, call.reference_y
    top = torch.minimum(y, before) if call.name in _MINIMA else torch.maximum(y, before)
    here = call.vjp(scaled(m, _apart(top, before)))
    there = call.derivative_at(call.reference_x, scaled(m, _apart(y, top)))
    return [
        _quotient(_plus(a, b, x), _apart(x, r))
        for a, b, x, r in zip(here, there, call.x, call.reference_x, strict=True)
    ]


def switch(call: Call, m: Tensor) -> Gradients:
    """where(condition, a, b): where the condition flips between the passes, Δy is shared by |Δa| and |Δb|."""
    plain = call.vjp(m)
    flips = _condition(call.args, call.kwargs) != _condition(call.reference.args, call.reference.kwargs)
    if not bool(flips.any()):
        return plain
    steps = [_apart(x, r) for x, r in zip(call.x, call.reference_x, strict=True)]
    total = sum(step.abs() for step in steps)
    assert isinstance(total, Tensor)
    share = _quotient(m * _apart(call.y, call.reference_y), total.expand_as(m))
    found = []
    for g, step in zip(plain, steps, strict=True):
        flipped = (share * step.sign()).expand_as(m)
        whole = torch.where(flips, flipped, torch.zeros_like(m) if g is None else g.expand_as(m))
        found.append(whole.sum_to_size(step.shape) if whole.shape != step.shape else whole)
    return found


REFERENCE_RULES: dict[str, Rule] = {
    "*": path_integral,
    "view": derivative,
    "linear": derivative,
    "elementwise": secant,
    "max_pool": cross,
    "max": cross,
    "where": switch,
}


def _condition(args: Any, kwargs: Any) -> Tensor:
    """torch.where(c, a, b) or a.where(c, b)."""
    return next(t for t in (*args, *(kwargs or {}).values()) if isinstance(t, Tensor) and t.dtype == torch.bool)


def _apart(x: Tensor, before: Tensor) -> Tensor:
    """x − x', and 0 where both are the same infinity."""
    return torch.where(x == before, torch.zeros_like(x), x - before)


def scaled(m: Any, factor: Tensor) -> Any:
    """The signal times a factor; of several outputs, the first."""
    return m * factor if isinstance(m, Tensor) else (m[0] * factor, *m[1:])


def _plus(a: Tensor | None, b: Tensor | None, like: Tensor) -> Tensor:
    parts = [t for t in (a, b) if t is not None]
    return sum(parts[1:], parts[0]) if parts else torch.zeros_like(like)


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0."""
    nothing = b == 0
    return torch.where(nothing, torch.zeros_like(a), a / b.masked_fill(nothing, 1))
