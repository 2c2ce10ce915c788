"""LRP through products of activations, and who takes all of one."""

from __future__ import annotations

from torch import Tensor

from whence.engine.call import Call, Gradients
from whence.engine.trackers.provenance import Origin
from whence.rules.lrp_division import (
    Divide,
    Named,
    by_input,
    has_complex,
    note_rounding,
    quotient,
    times_input,
    write_off,
)
from whence.util.tree import tensors_in

_SUMMED = frozenset({"matmul", "einsum", "bilinear"})  # products whose terms may cancel


class Product(Named):
    """A product of activations: each operand x ⊙ vjp(R/y), then an equal part of it."""

    title = "product"

    def __init__(self, divide: Divide) -> None:
        self.divide = divide

    def __call__(self, call: Call, r: Tensor) -> Gradients:
        weights = None if has_complex(call) else leaders(call)
        if weights is not None:
            shapes = [x.shape for x in call.inputs]
            return by_input(shapes, [(i, r * w if w else None) for i, w in enumerate(weights)])
        s = quotient(self.divide, r, call.y)
        write_off(call.note, self.divide, r, s, call.y)
        if call.family == "divide":  # of complex numbers: all of it is the dividend's
            parts = times_input(call, call.vjp(s))
            return [part if x is call.args[0] else None for x, part in zip(call.inputs, parts, strict=True)]
        if call.family in _SUMMED:
            note_rounding(call, self.divide, r)
        call.note.halve(r)
        return times_input(call, call.vjp(s / factors(call)))


def factors(call: Call) -> int:
    """How many live factors a product has: a square has two."""
    if call.family == "prod":
        return max(1, call.inputs[0].numel() // max(1, call.y.numel()))
    return max(1, sum(any(t is x for x in call.inputs) for t in tensors_in((call.args, call.kwargs))))


def leaders(call: Call) -> tuple[float, ...] | None:
    """Who takes all of a product: what is normalised, and the multiple of the tensor of which the other is a function.

    None for a product of two activations.
    """
    if call.family == "divide":
        return tuple(1.0 if call.args[0] is x else 0.0 for x in call.inputs)
    if call.family != "multiply" or len(call.inputs) != 2:
        return None
    a, b = call.origins
    if a.turned != b.turned:
        return (0.0, 1.0) if a.turned else (1.0, 0.0)
    same = call.inputs[0].shape == call.inputs[1].shape
    return by_point(a, b) if same else None


def by_point(a: Origin, b: Origin) -> tuple[float, float] | None:
    """Functions of one tensor, entry by entry, lead back to it: by the one that is a multiple of it, if one is."""
    if a.point is not b.point:
        return None
    if a.straight != b.straight:
        return (1.0, 0.0) if a.straight else (0.0, 1.0)
    return (0.5, 0.5)
