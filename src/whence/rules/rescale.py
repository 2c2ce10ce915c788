"""Rules between a reference and an input, op by op: m·Δy is shared out among the inputs' Δx with nothing lost.

Rescale (Shrikumar et al. 2017): elementwise functions take their secant; a maximum's Δy goes to the arg-max of the
input and that of the reference; what picks among its inputs (`where`, indices, masks) goes by both picks. Products,
norms and softmax are in `closed_forms`, attention in `attention`; the table of all is `deeplift.DEEPLIFT_RULES`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import Back, Call, Gradients
from whence.engine.nodes import Ahead
from whence.engine.ops import GROUP
from whence.engine.tape import WAY_OUT, RowsNeeded
from whence.errors import DivergedError
from whence.rules.path_integral import path_integral
from whence.util.tree import swapped, tensors_in

_KINKED = frozenset(
    """relu relu6 leaky_relu clamp abs hardswish hardsigmoid softshrink hardshrink round floor ceil trunc frac
    sign""".split()
)
STEEP = frozenset("log log2 log10 pow lgamma digamma logit asin acos atanh acosh erfinv xlogy".split())
_MAXIMA = frozenset("max amax maximum fmax".split())
_MINIMA = frozenset("min amin minimum fmin".split())


# ---- elementwise ----


def by_secant(call: Call) -> Back:
    """y = g(x) elementwise: Δy/Δx."""
    if len(call.inputs) != 1 or call.inputs[0].is_complex():
        return functools.partial(path_integral, call)
    by = slope(call, call.reference_x[0], call.x[0], call.reference_y, call.y)
    return lambda m: m * by


secant = Ahead(by_secant, secant=True)


def slope(call: Call, a: Tensor, b: Tensor, at_a: Tensor, at_b: Tensor) -> Tensor:
    """(g(b) − g(a)) / (b − a), in closed form where there is one, and g' between them where they are too close."""
    closed = _CLOSED.get(call.family)
    if closed is not None:
        return closed(a, b, at_a, at_b)
    step = difference(b, a)
    slopes = difference(at_b, at_a).div_(step)
    near = step.abs_() <= (too_close(call.family, a) if call.family not in STEEP else _too_close_there(a, b))
    return replaced_where(call, near, slopes, [((a, 0.5), (b, 0.5))])


def too_close(family: str, like: Tensor) -> float:
    """Below which step a quotient is mostly rounding; at kinks only none is."""
    return 0.0 if family in _KINKED else float(torch.finfo(like.dtype).eps ** (1 / 3))


def _too_close_there(a: Tensor, b: Tensor) -> Tensor:
    """The same for functions that are steep at 0 and 1: relative to how far these are."""
    room = torch.minimum(a.abs(), b.abs())
    room = torch.minimum(room, torch.minimum((1 - a.abs()).abs(), (1 - b.abs()).abs()))
    return torch.finfo(a.dtype).eps ** (1 / 3) * room


def replaced_where(
    call: Call, near: Tensor, slopes: Tensor, points: Sequence[Sequence[tuple[Tensor, float]]]
) -> Tensor:
    """Slopes, but where entries are near the mean of the op's derivatives at some points, sums of tensors × factors."""
    some = _entries(near)
    if not len(some):
        return slopes
    total: Any = torch.zeros((), dtype=slopes.dtype, device=slopes.device)
    for terms in points:
        if sum(1 for _ in tensors_in([*call.args, *call.kwargs.values()])) == 1:  # nothing else that goes by entries
            there = _derivative_at_some(call, sum(_take(x, some, near) * by for x, by in terms))  # type: ignore[arg-type]
        else:
            whole = call.derivative_at([sum(x * by for x, by in terms)], torch.ones_like(slopes))[0]  # type: ignore[list-item]
            there = None if whole is None else whole.take(some)
        total = total if there is None else total + there
    return slopes.put_(some, (total / len(points)).expand(len(some)))


def _derivative_at_some(call: Call, points: Tensor) -> Tensor | None:
    """An elementwise op's derivative at some points in a row, or None where torch has none."""
    points.requires_grad_()
    with torch.enable_grad():
        swap = {id(call.inputs[0]): points}
        value = call.function(*swapped(call.args, swap), **swapped(call.kwargs, swap))
    if value.requires_grad and "NotImplemented" not in value.grad_fn.name():
        return torch.autograd.grad(value, points, torch.ones_like(value))[0]
    return None


def _entries(near: Tensor) -> Tensor:
    """The numbers of the entries that are true; they are few, so eight at a time are looked at."""
    flat = near.flatten()
    if flat.numel() % 8:
        return flat.nonzero().flatten()
    eights = flat.view(torch.int64).nonzero().flatten()
    which, within = flat.view(-1, 8)[eights].nonzero().unbind(1)
    return eights[which] * 8 + within


def _take(x: Tensor, some: Tensor, like: Tensor) -> Tensor:
    """Entries by their number in a tensor of this shape."""
    return x.take(some) if x.shape == like.shape else x.expand_as(like)[torch.unravel_index(some, like.shape)]


def tanhc_(z: Tensor) -> Tensor:
    """tanh(z) / z, which overwrites z."""
    size = z.abs_().clamp_(min=torch.finfo(z.dtype).tiny)  # an even function; at 0 it is 1
    return size.tanh().div_(size)


# family → slope from (a, b, g(a), g(b)), without a difference that cancels
_CLOSED: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "square": lambda a, b, ga, gb: a + b,
    "sqrt": lambda a, b, ga, gb: quotient(torch.ones_like(gb), ga + gb),
    "rsqrt": lambda a, b, ga, gb: -(ga * gb) * (ga * gb) / (ga + gb),
    "reciprocal": lambda a, b, ga, gb: -ga / b,
    "exp": lambda a, b, ga, gb: (ga + gb) / 2 * tanhc_(difference(b, a) / 2),
    "sigmoid": lambda a, b, ga, gb: (ga * (1 - gb) + gb * (1 - ga)) / 2 * tanhc_(difference(b, a) / 2),
    "tanh": lambda a, b, ga, gb: (1 - ga * gb) * tanhc_(difference(b, a)),
}


# ---- maxima ----


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
    here = call.vjp(scaled(m, difference(top, before)))
    there = call.derivative_at(call.reference_x, scaled(m, difference(y, top)))
    return [
        quotient(_plus(a, b, x), difference(x, r))
        for a, b, x, r in zip(here, there, call.x, call.reference_x, strict=True)
    ]


# ---- picks ----


def by_both_picks(call: Call) -> Back:
    """y = A x with an A that the data chose (a condition, an index, a mask), and y' = A' x' with another.

    Δy is shared between what A and what A' makes of Δx, by their sizes; where A = A' this is A's own derivative.
    """
    x, before, entry = call.x, call.reference_x, call.reference
    if not _goes_with(call.reference_y.shape, call.y.shape):
        raise DivergedError(
            f"The data picks {tuple(call.y.shape)} entries in {call} for the input, but "
            f"{tuple(call.reference_y.shape)} for the reference.\n{WAY_OUT}"
        )
    rise = difference(call.y, call.reference_y)
    ours = difference(call.y, call.value_at([r.expand_as(t) for r, t in zip(before, x, strict=True)]))
    other = _with_constants(call, entry)
    theirs = difference(other.value_at(x), call.reference_y)
    whole = ours.abs() + theirs.abs()
    shares = (quotient(rise * part.sgn().conj(), whole).conj() for part in (ours, theirs))
    by_ours, by_theirs = (torch.nan_to_num(share, 0, 0, 0) for share in shares)

    def back(m: Any) -> Gradients:
        here = call.derivative_at(x, scaled(m, by_ours))
        there = other.derivative_at(x, scaled(m, by_theirs))
        return [_plus(a, b, t) for a, b, t in zip(here, there, x, strict=True)]

    return back


def chosen_otherwise(call: Call) -> bool:
    """Whether the constants of this op are not those of the reference."""
    ours, theirs = (list(_constants(of.args, of.kwargs, live)) for of, live in _both(call))
    if len(ours) != len(theirs):
        return True
    mismatched = [(b, a) for a, b in zip(ours, theirs, strict=True) if a.shape != b.shape]
    if mismatched and _counts_rows(call, ours):
        raise RowsNeeded(f"{call}: an index of " + " against ".join(str(tuple(t.shape)) for t in mismatched[0]))
    differing = [a for a, b in zip(ours, theirs, strict=True) if _differ(a, b)]
    if call.name in ("getitem", "masked_select") and any(a.dtype == torch.bool for a in differing):
        raise DivergedError(
            f"A mask in {call} picks other entries for the input than for the reference, so it is unknown which "
            f"belongs to which.\n{WAY_OUT}"
        )
    return bool(differing)


def _counts_rows(call: Call, constants: Sequence[Tensor]) -> bool:
    """Whether an index may count rows, of which a reference of one row has the first alone.

    What picks inside each row (`gather` along another axis, a condition for each entry) goes with the rows.
    """
    if call.name in _BESIDE and len(call.args) > 1:
        return bool(call.args[1] in (0, -call.inputs[0].dim()))
    picks = call.name in ("getitem", "setitem", "masked_select", "index_put", "masked_scatter")
    return any(not (t.is_floating_point() or t.is_complex()) and (picks or t.dtype != torch.bool) for t in constants)


_BESIDE = frozenset("gather scatter scatter_add scatter_reduce".split())  # (input, dim, index, …)


switch = Ahead(by_both_picks, when=chosen_otherwise)


def _both(call: Call) -> list[tuple[Any, Sequence[Tensor]]]:
    return [(call, call.inputs), (call.reference, call.reference.values)]


def _constants(args: Any, kwargs: Any, live: Sequence[Tensor]) -> Any:
    known = {id(t) for t in live}
    return (t for t in tensors_in([*args, *(kwargs or {}).values()]) if id(t) not in known)


def _differ(a: Tensor, b: Tensor) -> bool:
    if a is b:
        return False
    if a.layout != torch.strided or b.layout != torch.strided:
        return a.shape != b.shape or _differ(a.to_dense(), b.to_dense())
    if a.data_ptr() == b.data_ptr() and a.shape == b.shape:
        return False
    return not _goes_with(b.shape, a.shape) or bool((a != b).any())


def _goes_with(one: torch.Size, many: torch.Size) -> bool:
    return len(one) == len(many) and all(a in (1, b) for a, b in zip(one, many, strict=True))


def _with_constants(call: Call, entry: Any) -> Call:
    """The same op with the reference's constants around our live inputs."""
    swap = {id(r): t for r, t in zip(entry.values, call.inputs, strict=True)}
    args, kwargs = swapped(entry.args, swap), swapped(entry.kwargs or {}, swap)
    rows = [t.expand_as(o) if _stretches(t, o) else t for t, o in _pairs(args, call.args)]
    if rows:
        args = swapped(args, {id(t): r for (t, _), r in zip(_pairs(args, call.args), rows, strict=True)})
    return Call(call.family, call.name, call.path, call.function, args, kwargs, call.inputs, call.outputs)


def _pairs(a: Any, b: Any) -> list[tuple[Tensor, Tensor]]:
    return list(zip(tensors_in(list(a)), tensors_in(list(b)), strict=False))


def _stretches(one: Tensor, many: Tensor) -> bool:
    return one.dim() == many.dim() and one.shape != many.shape


# ---- small arithmetic ----


def difference(x: Tensor, before: Tensor) -> Tensor:
    """x − x', a new tensor, and 0 where both are the same infinity."""
    step = x - before
    suspect = step.sum().isnan() if step.is_floating_point() else step.isnan().any()  # a sum is the quicker look
    return torch.where(x == before, torch.zeros_like(step), step) if bool(suspect) else step


def scaled(m: Any, factor: Tensor) -> Any:
    """The signal times a factor; of several outputs, the first."""
    return m * factor if isinstance(m, Tensor) else (m[0] * factor, *m[1:])


def quotient(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0."""
    nothing = b == 0
    return torch.where(nothing, torch.zeros_like(a), a / b.masked_fill(nothing, 1))


def _plus(a: Tensor | None, b: Tensor | None, like: Tensor) -> Tensor:
    parts = [t for t in (a, b) if t is not None]
    return sum(parts[1:], parts[0]) if parts else torch.zeros_like(like)
