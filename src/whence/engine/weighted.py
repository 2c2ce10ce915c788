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

Pull = Callable[[Tensor], Tensor]
Lost = dict[str, Tensor]  # by kind, like the output; its last axis may be summed already


@dataclass(frozen=True)
class Divide:
    """a / (b + ε·sign b), where 0 counts as positive; unsigned, a / (b + ε), and 0 where b is 0."""

    epsilon: float
    signed: bool = True

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        if self.signed and self.epsilon:
            return a / (b + torch.where(b < 0, -self.epsilon, self.epsilon))
        below = b + self.epsilon
        found = a / below
        if not bool(b.all()) or not bool(below.all()):
            found.masked_fill_((b == 0) | (below == 0), 0.0)
        return found

    def lost(self, a: Tensor, s: Tensor, b: Tensor) -> Tensor:
        """What of a is not in s·b, entry by entry: the stabiliser's part, and all of it where s was made 0."""
        if self.signed and self.epsilon:
            return torch.where(b < 0, -s, s) * self.epsilon
        small = s * self.epsilon
        return small if bool(b.all()) else torch.where(b == 0, a, small)


NUDGED = Divide(1e-9, signed=False)  # how the authors of Transformer Attribution divide


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


@dataclass(frozen=True, eq=False)
class Weighted:
    """A rule for ops with weights; `divide` of its own if it is not the composite's."""

    name: str
    run: Callable[[Maps, Tensor, Divide], Found]
    divide: Divide | None = None

    def __call__(self, maps: Maps, r: Tensor, divide: Divide) -> Found:
        return self.run(maps, r, self.divide or divide)


def _whole(maps: Maps, r: Tensor, divide: Divide) -> Found:
    """All contributions and the bias: z = u + b = y."""
    s = divide(r, maps.y)
    lost = {"epsilon": divide.lost(r, s, maps.y).sum(-1, keepdim=True)}
    if isinstance(maps.bias, Tensor):
        lost["bias"] = (s * maps.bias).sum(-1, keepdim=True)
    return maps.back(s).mul_(maps.x), lost


def _raising(biased: bool) -> Callable[[Maps, Tensor, Divide], Found]:
    """Contributions that raise the output, and a positive bias if it takes part: z = ½(u + v) + b⁺.

    What is divided by is 2z, so that nothing has to be halved.
    """

    def run(maps: Maps, r: Tensor, divide: Divide) -> Found:
        size = maps.x.abs()
        magnitude, pull = maps.apply(size, maps.weight.abs())
        twice = maps.y + magnitude
        if isinstance(maps.bias, Tensor):
            twice -= maps.bias
        empty = _only_rounding(twice, magnitude)
        del magnitude
        bias = maps.bias.clamp(min=0) if biased and isinstance(maps.bias, Tensor) else None
        shift = 2 * divide.epsilon if bias is None else 2 * (bias + divide.epsilon)
        s = r / (twice.add_(shift) if divide.epsilon or bias is not None else twice)
        lost: Lost = {}
        if empty is not None:
            s.masked_fill_(empty, 0.0)
            lost["empty"] = (r * empty).sum(-1, keepdim=True)
        given = s.sum(-1, keepdim=True)
        lost["epsilon"] = 2 * divide.epsilon * given
        if bias is not None:
            lost["bias"] = 2 * (s * bias).sum(-1, keepdim=True)
        return maps.back(s).mul_(maps.x).addcmul_(size, pull(s)), lost

    return run


def _only_rounding(z: Tensor, magnitude: Tensor) -> Tensor | None:
    """Where a sum of one sign is nothing but rounding."""
    tiny = 64 * torch.finfo(z.dtype).eps
    if z.numel() and bool(z.amin() > tiny * magnitude.amax()):
        return None
    nothing = z <= tiny * magnitude
    return nothing if bool(nothing.any()) else None


@dataclass(frozen=True)
class Side:
    """A denominator z = cu·u + cv·v + bias, through which `share`·R goes, for outputs of some sign or for all."""

    cu: float
    cv: float
    bias: Callable[[Any], Any]
    share: float = 1.0
    sign: int = 0


def _by_sides(*sides: Side) -> Callable[[Maps, Tensor, Divide], Found]:
    def run(maps: Maps, r: Tensor, divide: Divide) -> Found:
        size, u = maps.x.abs(), maps.y - maps.bias
        magnitude, pull = maps.apply(size, maps.weight.abs())
        to_u, to_v, rest, biased, empty = (torch.zeros_like(u) for _ in range(5))
        rest += r
        for side in sides:
            given = side.share * r if not side.sign else side.share * r * (maps.y * side.sign > 0)
            z, bias = side.cu * u + side.cv * magnitude, side.bias(maps.bias)
            s = divide(given, z + bias)
            if abs(side.cu) == abs(side.cv):
                nothing = _only_rounding(z.abs(), magnitude)
                if nothing is not None:
                    s, empty = s.masked_fill(nothing, 0.0), torch.where(nothing, empty + given, empty)
            to_u, to_v = to_u.add_(s, alpha=side.cu), to_v.add_(s, alpha=side.cv)
            rest, biased = rest.sub_(s * z), biased.add_(s * bias)
        lost = {"bias": biased, "empty": empty, "epsilon": rest - biased - empty}
        return maps.back(to_u).mul_(maps.x).addcmul_(size, pull(to_v)), {
            kind: amount.sum(-1, keepdim=True) for kind, amount in lost.items()
        }

    return run


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
        lost = {"epsilon": rest}
        if isinstance(added, Tensor):
            lost = {"bias": signals[0] * added, "epsilon": rest - signals[0] * added}
        return sum(parts[1:], parts[0]), {kind: amount.sum(-1, keepdim=True) for kind, amount in lost.items()}

    return run


def _up(b: Any) -> Any:
    return b.clamp(min=0) if isinstance(b, Tensor) else max(b, 0.0)


def _down(b: Any) -> Any:
    return b.clamp(max=0) if isinstance(b, Tensor) else min(b, 0.0)


def epsilon(epsilon: float = 1e-6) -> Weighted:
    """x ⊙ Wᵀ(R / (y + ε·sign y))."""
    return Weighted("epsilon", _whole, Divide(epsilon))


def z_plus() -> Weighted:
    """Contributions that raise the output, and a positive bias."""
    return Weighted("z_plus", _raising(biased=True))


def alpha_beta(alpha: float = 2.0, beta: float = 1.0) -> Weighted:
    """α × what raises the output − β × what lowers it."""
    if abs(alpha - beta - 1) > 1e-9 or alpha < 1:
        raise ParameterError(f"alpha={alpha}, beta={beta} are not allowed.\n  Give alpha ≥ 1 and beta = alpha − 1.")
    if not beta:
        return Weighted("alpha_beta", _raising(biased=True))
    return Weighted("alpha_beta", _by_sides(Side(0.5, 0.5, _up, alpha), Side(0.5, -0.5, _down, -beta)))


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
    return Weighted("chefer", _raising(biased=False))


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
