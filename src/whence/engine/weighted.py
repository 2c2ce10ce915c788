"""Relevance through ops with weights: dense layers, convolutions, products with a constant.

Most rules are made of two maps, u = x·W and v = |x|·|W|, because x⁺W⁺ + x⁻W⁻ = ½(u + v) and x⁺W⁻ + x⁻W⁺ = ½(u − v).
Where nothing but rounding is left of such a sum, its set of contributions is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import Call, swapped
from whence.errors import ParameterError

Divide = Callable[[Tensor, Tensor], Tensor]
Pull = Callable[[Tensor], Tensor]
Lost = dict[str, Tensor]  # by kind, like the output; its last axis may be summed already


def nudged(a: Tensor, b: Tensor) -> Tensor:
    """a / (b + 1e-9), and 0 where b is 0: how the authors of Transformer Attribution divide."""
    return torch.where(b == 0, 0.0, a / (b + 1e-9).masked_fill_(b == -1e-9, 1e-9))


def stabilised(epsilon: float) -> Divide:
    """a / (b + ε·sign b), where 0 counts as positive."""

    def divide(a: Tensor, b: Tensor) -> Tensor:
        found = a / (b + torch.where(b < 0, -epsilon, epsilon))
        return found if epsilon else torch.where(b == 0, 0.0, found)

    return divide


# ---- the op as a linear map ----


@dataclass(eq=False)
class Maps:
    """One op: y = L(x, W) + b, and L with other values in both places."""

    x: Tensor
    y: Tensor
    weight: Tensor
    bias: Tensor | float  # laid out like the output
    apply: Callable[[Tensor, Tensor], tuple[Tensor, Pull]]  # L(x', W'), and how signals come back to x'
    back: Pull  # of L(x, W) itself


def maps_of(call: Call) -> Maps | None:
    """The op's maps, or None where it has no single weight."""
    if len(call.inputs) != 1:
        return None
    x, (weight, bias) = call.x[0], _operands(call)
    if weight is None or weight.dtype != x.dtype or not call.y.is_floating_point():
        return None

    def apply(new: Tensor, other: Tensor) -> tuple[Tensor, Pull]:
        with torch.enable_grad():
            leaf = new.detach().requires_grad_()
            swap = {id(call.inputs[0]): leaf, id(weight): other}
            if bias is not None:
                swap[id(bias)] = torch.zeros_like(bias)
            out = call.function(*swapped(call.args, swap), **swapped(call.kwargs, swap))
        return out.detach(), lambda s: torch.autograd.grad(out, leaf, s)[0]

    return Maps(x, call.y, weight, _laid_out(call, bias), apply, lambda s: _one(call.vjp(s)))


def _one(found: Sequence[Tensor | None]) -> Tensor:
    assert found[0] is not None
    return found[0]


def _operands(call: Call) -> tuple[Tensor | None, Tensor | None]:
    """Weight and bias among the arguments."""
    args, kwargs, name = call.args, call.kwargs, call.name
    if name == "linear" or call.family == "convolution":
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        return weight, args[2] if len(args) > 2 and isinstance(args[2], Tensor | None) else kwargs.get("bias")
    flat = [t for a in (*args, *kwargs.values()) for t in (a if isinstance(a, list | tuple) else [a])]
    others = [t for t in flat if isinstance(t, Tensor) and t is not call.inputs[0]]
    if name.startswith("add") and len(others) == 2 and not kwargs and args[0] is others[0]:
        return others[1], others[0]
    return (others[0], None) if len(others) == 1 and not name.startswith("add") else (None, None)


def _laid_out(call: Call, bias: Tensor | None) -> Tensor | float:
    if bias is None:
        return 0.0
    spatial = call.y.dim() - 1 - (call.inputs[0].dim() == call.y.dim() and call.name != "conv_tbc")
    return bias.view(-1, *[1] * spatial) if call.family == "convolution" and call.name != "conv_tbc" else bias


def dense(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Maps:
    """F.linear, whose maps need no graph."""

    def apply(new: Tensor, other: Tensor) -> tuple[Tensor, Pull]:
        return new @ other.mT, lambda s: s @ other

    return Maps(x, y, weight, 0.0 if bias is None else bias, apply, lambda s: s @ weight)


# ---- rules ----

Found = tuple[Tensor, Lost]


@dataclass(frozen=True)
class Side:
    """A denominator z = cu·u + cv·v + bias, through which `share`·R goes, for outputs of some sign or for all."""

    cu: float
    cv: float
    bias: Callable[[Any], Any] | None = None
    share: float = 1.0
    sign: int = 0


@dataclass(frozen=True, eq=False)
class Weighted:
    """A rule for ops with weights; `divide` of its own if it is not the composite's."""

    name: str
    run: Callable[[Maps, Tensor, Divide], Found]
    divide: Divide | None = None

    def __call__(self, maps: Maps, r: Tensor, divide: Divide) -> Found:
        return self.run(maps, r, self.divide or divide)


def _by_sides(*sides: Side) -> Callable[[Maps, Tensor, Divide], Found]:
    def run(maps: Maps, r: Tensor, divide: Divide) -> Found:
        u, magnitude, pull = maps.y - maps.bias, None, None
        if any(side.cv for side in sides):
            magnitude, pull = maps.apply(maps.x.abs(), maps.weight.abs())
        to_u: Any = 0.0
        to_v: Any = 0.0
        rest, biased, empty = r, None, None
        for side in sides:
            z, given = side.cu * u if side.cu != 1 else u, r if side.share == 1 else side.share * r
            nothing = None
            if magnitude is not None and side.cv:
                z = z + side.cv * magnitude
                nothing = _only_rounding(z, magnitude) if abs(side.cu) == abs(side.cv) else None
            if side.sign:
                given = given * (maps.y * side.sign > 0)
            bias = 0.0 if side.bias is None else side.bias(maps.bias)
            s = divide(given, z + bias if side.bias is not None else z)
            if nothing is not None:
                s = s.masked_fill(nothing, 0.0)
                empty = nothing if empty is None else empty | nothing
            to_u, to_v = to_u + side.cu * s, to_v + side.cv * s
            rest = rest - s * z
            if side.bias is not None and isinstance(bias, Tensor):
                biased = s * bias + (0.0 if biased is None else biased)
        found = maps.x * maps.back(to_u)
        if pull is not None:
            found = found + maps.x.abs() * pull(to_v)
        return found, _sorted(rest, biased, empty)

    return run


def _only_rounding(z: Tensor, magnitude: Tensor) -> Tensor | None:
    """Where a sum of one sign is nothing but rounding."""
    nothing = z.abs() <= 32 * torch.finfo(z.dtype).eps * magnitude
    return nothing if bool(nothing.any()) else None


def _sorted(rest: Tensor, biased: Tensor | None, empty: Tensor | None) -> Lost:
    """What was not handed on, by kind."""
    lost: Lost = {}
    if biased is not None:
        lost["bias"], rest = biased.sum(-1, keepdim=True), rest - biased
    if empty is not None:
        lost["empty"] = (rest * empty).sum(-1, keepdim=True)
        rest = rest.masked_fill(empty, 0.0)
    lost["epsilon"] = rest.sum(-1, keepdim=True)
    return lost


def _by_terms(
    terms: Callable[[Tensor, Tensor], Sequence[tuple[Tensor, Tensor]]], *, together: bool = True,
    bias: Callable[[Any], Any] | None = None, double: bool = False,
) -> Callable[[Maps, Tensor, Divide], Found]:  # fmt: skip
    """Rules of other values in both places: z = Σ L(x', W'), with one denominator for all or one for each."""

    def run(maps: Maps, r: Tensor, divide: Divide) -> Found:
        given = terms(maps.x, maps.weight)
        done = [maps.apply(x, w) for x, w in given]
        added = 0.0 if bias is None else bias(maps.bias)
        sums = [sum((out for out, _ in done[1:]), done[0][0]) + added] * len(done) if together else [o for o, _ in done]
        signals = [divide(r, z) for z in (sums[:1] * len(done) if together else sums)]
        if together:
            signals = signals[:1] * len(done)
        parts = [x * pull(s) for (x, _), (_, pull), s in zip(given, done, signals, strict=True)]
        rest = r - sum(s * out for s, (out, _) in zip(signals, done, strict=True))
        if double:
            return sum(parts[1:], parts[0]), {"counted twice": rest.sum(-1, keepdim=True)}
        biased = signals[0] * added if isinstance(added, Tensor) else None
        return sum(parts[1:], parts[0]), _sorted(rest, biased, sums[0] == 0 if together else None)

    return run


def _up(b: Any) -> Any:
    return b.clamp(min=0) if isinstance(b, Tensor) else max(b, 0.0)


def _down(b: Any) -> Any:
    return b.clamp(max=0) if isinstance(b, Tensor) else min(b, 0.0)


def epsilon(epsilon: float = 1e-6) -> Weighted:
    """x ⊙ Wᵀ(R / (y + ε·sign y))."""
    return Weighted("epsilon", _by_sides(Side(1, 0, lambda b: b)), stabilised(epsilon))


def z_plus() -> Weighted:
    """Contributions that raise the output, and a positive bias."""
    return Weighted("z_plus", _by_sides(Side(0.5, 0.5, _up)))


def alpha_beta(alpha: float = 2.0, beta: float = 1.0) -> Weighted:
    """α × what raises the output − β × what lowers it."""
    if abs(alpha - beta - 1) > 1e-9 or alpha < 1:
        raise ParameterError(f"alpha={alpha}, beta={beta} are not allowed.\n  Give alpha ≥ 1 and beta = alpha − 1.")
    sides = [Side(0.5, 0.5, _up, alpha), Side(0.5, -0.5, _down, -beta)]
    return Weighted("alpha_beta", _by_sides(*(sides if beta else sides[:1])))


def gamma(gamma: float = 0.25) -> Weighted:
    """Contributions of the output's sign count 1 + γ times."""
    half = gamma / 2
    return Weighted(
        "gamma",
        _by_sides(
            Side(1 + half, half, lambda b: b + gamma * _up(b), sign=1),
            Side(1 + half, -half, lambda b: b + gamma * _down(b), sign=-1),
        ),
    )


def chefer() -> Weighted:
    """G_q: pairs with x·w ≥ 0 alone, and no bias (seed 001, eq. 3)."""
    return Weighted("chefer", _by_sides(Side(0.5, 0.5)))


def orig() -> Weighted:
    """The authors' baseline: what x⁺ and what x⁻ raises, each with all of R, so that relevance is counted twice."""

    def terms(x: Tensor, w: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        return [(x.clamp(min=0), w.clamp(min=0)), (x.clamp(max=0), w.clamp(max=0))]

    return Weighted("orig", _by_terms(terms, together=False, double=True))


def flat() -> Weighted:
    """Evenly over the inputs."""
    return Weighted("flat", _by_terms(lambda x, w: [(torch.ones_like(x), torch.ones_like(w))]))


def w_square() -> Weighted:
    """By the square of the weight."""
    square = lambda b: b * b  # noqa: E731
    return Weighted("w_square", _by_terms(lambda x, w: [(torch.ones_like(x), w * w)], bias=square))


def z_box(low: Any = None, high: Any = None) -> Weighted:
    """Inputs between two bounds: xW − lW⁺ − hW⁻; by default each row's own least and largest value."""

    def terms(x: Tensor, w: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        bounds = [_bound(x, low, Tensor.amin), _bound(x, high, Tensor.amax)]
        return [(x, w), (-bounds[0], w.clamp(min=0)), (-bounds[1], w.clamp(max=0))]

    return Weighted("z_box", _by_terms(terms))


def _bound(x: Tensor, given: Any, own: Any) -> Tensor:
    if given is None:
        return own(x, tuple(range(1, x.dim())), keepdim=True).expand_as(x) if x.dim() > 1 else own(x).expand_as(x)
    return torch.as_tensor(given, dtype=x.dtype, device=x.device).expand_as(x)


RULES: dict[str, Callable[..., Weighted]] = {
    rule.__name__: rule for rule in (epsilon, gamma, alpha_beta, z_plus, chefer, orig, flat, w_square, z_box)
}
