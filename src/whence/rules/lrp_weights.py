"""Relevance through ops with weights: dense layers, convolutions, products with a constant.

Most rules are made of two maps, u = x·W and v = |x|·|W|, because x⁺W⁺ + x⁻W⁻ = ½(u + v) and x⁺W⁻ + x⁻W⁺ = ½(u − v).
Where one of these is a small difference of large numbers, it is summed by itself instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import Call, swapped
from whence.errors import ParameterError
from whence.util.checks import not_allowed

Pull = Callable[[Tensor], Tensor]
Lost = dict[str, Tensor]  # by kind, like the output; its last axis may be summed already


@dataclass(frozen=True)
class Divide:
    """a / (b + ε·sign b), where 0 counts as positive; unsigned, a / (b + ε), and 0 where b is 0."""

    epsilon: float
    signed: bool = True

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        if self.signed and self.epsilon:
            return a / (b + b.new_tensor(self.epsilon).copysign(b.masked_fill(b == 0, 0.0)))
        found = a / (b + self.epsilon)
        return found if bool(b.all()) else found.masked_fill_(b == 0, 0.0)

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
    rows_last: bool = False  # the last axis is the rows', and may not be summed over

    def total(self, amount: Tensor) -> Tensor:
        """A loss, summed over the last axis where that may be."""
        return amount if self.rows_last else amount.sum(-1, keepdim=True)

    def raising(self) -> tuple[Tensor, Pull]:
        """x⁺W⁺ + x⁻W⁻, each by itself, and how signals come back."""
        return self._sum(
            (self.x.clamp(min=0), self.weight.clamp(min=0)), (self.x.clamp(max=0), self.weight.clamp(max=0))
        )

    def lowering(self) -> tuple[Tensor, Pull]:
        """x⁺W⁻ + x⁻W⁺."""
        return self._sum(
            (self.x.clamp(min=0), self.weight.clamp(max=0)), (self.x.clamp(max=0), self.weight.clamp(min=0))
        )

    def _sum(self, *terms: tuple[Tensor, Tensor]) -> tuple[Tensor, Pull]:
        (a, pull_a), (b, pull_b) = (self.apply(x, w) for x, w in terms)
        return a + b, lambda s: (terms[0][0] * pull_a(s)).addcmul_(terms[1][0], pull_b(s))


def maps_of(call: Call) -> Maps | None:
    """The op's maps, or None where it has no single weight."""
    if len(call.inputs) != 1:
        return None
    x, (weight, bias) = call.x[0], _operands(call)
    if weight is None or weight.dtype != x.dtype or not call.y.is_floating_point():
        return None
    narrow = torch.finfo(x.dtype).bits < 32

    def apply(new: Tensor, other: Tensor) -> tuple[Tensor, Pull]:
        with torch.enable_grad():
            leaf = new.detach().requires_grad_()
            swap = {id(call.inputs[0]): leaf, id(weight): other}
            if bias is not None:
                swap[id(bias)] = torch.zeros_like(bias, dtype=other.dtype)
            out = call.function(*swapped(call.args, swap), **swapped(call.kwargs, swap))
        return out.detach(), lambda s: torch.autograd.grad(out, leaf, s)[0]

    if not narrow:
        return Maps(x, call.y, weight, _laid_out(call, bias), apply, lambda s: _one(call.vjp(s)))
    x, wide = x.float(), weight.float()
    out, back = apply(x, wide)
    b = _laid_out(call, None if bias is None else bias.float())
    return Maps(x, out + b, wide, b, apply, back)


def _one(found: Sequence[Tensor | None]) -> Tensor:
    assert found[0] is not None
    return found[0]


def _operands(call: Call) -> tuple[Tensor | None, Tensor | None]:
    """Weight and bias among the arguments."""
    args, kwargs, name = call.args, call.kwargs, call.name
    if name == "grouped_rows":
        return args[1], None
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
    """F.linear, whose maps need no graph; halves are too short for sums of one sign."""
    if torch.finfo(x.dtype).bits < 32:
        x, y, weight, bias = x.float(), y.float(), weight.float(), None if bias is None else bias.float()

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
        found, lost = self.run(maps, r.to(maps.x.dtype), self.divide or divide)
        return found.to(r.dtype), lost


def _whole(maps: Maps, r: Tensor, divide: Divide) -> Found:
    """All contributions and the bias: z = u + b = y."""
    s = divide(r, maps.y)
    lost = {"epsilon": maps.total(divide.lost(r, s, maps.y))}
    if isinstance(maps.bias, Tensor):
        lost["bias"] = maps.total(s * maps.bias)
    return maps.back(s).mul_(maps.x), lost


def _raising(biased: bool) -> Callable[[Maps, Tensor, Divide], Found]:
    """Contributions that raise the output, and a positive bias if it takes part: z = ½(u + v) + b⁺.

    What is divided by is 2z, so that nothing has to be halved.
    """

    def run(maps: Maps, r: Tensor, divide: Divide) -> Found:
        size = maps.x.abs()
        twice, pull = maps.apply(size, maps.weight.abs())
        largest = twice.amax() if twice.numel() else 0.0
        twice += _without_bias(maps, largest)
        bias = maps.bias.clamp(min=0) if biased and isinstance(maps.bias, Tensor) else None
        if _is_delicate(twice, largest):
            return _raising_alone(maps, r, divide, bias)
        shift = divide.epsilon if bias is None else bias + divide.epsilon
        s = torch.div(r, twice.add_(2 * shift), out=twice)
        lost = {"epsilon": 2 * divide.epsilon * maps.total(s)}
        if bias is not None:
            lost["bias"] = 2 * maps.total(s * bias)
        return maps.back(s).mul_(maps.x).addcmul_(size, pull(s)), lost

    return run


_DELICATE = 1e-2  # a sum of one sign that is smaller than this part of all magnitudes


def _is_delicate(z: Tensor, largest: Any) -> bool:
    """Whether rounding would show in the smallest sum of one sign."""
    return z.numel() > 0 and bool(z.amin() <= _DELICATE * largest)


def _raising_alone(maps: Maps, r: Tensor, divide: Divide, bias: Tensor | None) -> Found:
    """The same, sums of each sign by themselves: an empty set is exactly 0."""
    z, pull = maps.raising()
    below = z if bias is None else z + bias
    s = divide(r, below).masked_fill_(z == 0, 0.0)
    lost = {"empty": maps.total(r * (z == 0)), "epsilon": maps.total(divide.epsilon * s)}
    if bias is not None:
        lost["bias"] = maps.total(s * bias)
    return pull(s), lost


def _without_bias(maps: Maps, largest: Any) -> Tensor:
    """y − b, or the op anew where the bias drowns what it is added to."""
    if isinstance(maps.bias, float):
        return maps.y
    drowned = bool(maps.bias.abs().amax() > 16 * largest)
    return maps.apply(maps.x, maps.weight)[0] if drowned else maps.y - maps.bias


@dataclass(frozen=True)
class Side:
    """A denominator z = up·(what raises) + down·(what lowers) + bias, through which `share`·R goes.

    For outputs of some sign, or for all.
    """

    up: float
    down: float
    bias: Callable[[Any], Any]
    share: float = 1.0
    sign: int = 0


def _by_sides(*sides: Side) -> Callable[[Maps, Tensor, Divide], Found]:
    def run(maps: Maps, r: Tensor, divide: Divide) -> Found:
        (up, pull_up), (down, pull_down) = maps.raising(), maps.lowering()
        to_up, to_down, biased, empty, small = (torch.zeros_like(up) for _ in range(5))
        unsent = r.clone()
        for side in sides:
            given = side.share * r if not side.sign else side.share * r * (maps.y * side.sign > 0)
            z, bias = side.up * up + side.down * down, side.bias(maps.bias)
            s = divide(given, z + bias)
            nothing = (z == 0) | (s == 0)
            s = s.masked_fill(nothing, 0.0)
            to_up, to_down = to_up.add_(s, alpha=side.up), to_down.add_(s, alpha=side.down)
            empty, biased = torch.where(nothing, empty + given, empty), biased.add_(s * bias)
            small = small.add_(given.masked_fill(nothing, 0.0) - s * (z + bias))
            unsent -= given
        lost = {"bias": biased, "empty": empty + unsent, "epsilon": small}
        return pull_up(to_up).add_(pull_down(to_down)), {kind: maps.total(amount) for kind, amount in lost.items()}

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
        if together:
            signals = [divide(r, sum((out for out, _ in done[1:]), done[0][0]) + added)] * len(done)
        else:
            signals = [divide(r, out) for out, _ in done]
        parts = [x * pull(s) for (x, _), (_, pull), s in zip(given, done, signals, strict=True)]
        rest = r - sum(s * out for s, (out, _) in zip(signals, done, strict=True))
        if double:
            return sum(parts[1:], parts[0]), {"counted twice": maps.total(rest)}
        lost = {"epsilon": rest}
        if isinstance(added, Tensor):
            lost = {"bias": signals[0] * added, "epsilon": rest - signals[0] * added}
        return sum(parts[1:], parts[0]), {kind: maps.total(amount) for kind, amount in lost.items()}

    return run


def _up(b: Any) -> Any:
    return b.clamp(min=0) if isinstance(b, Tensor) else max(b, 0.0)


def _down(b: Any) -> Any:
    return b.clamp(max=0) if isinstance(b, Tensor) else min(b, 0.0)


def epsilon(epsilon: float = 1e-6) -> Weighted:
    """x ⊙ Wᵀ(R / (y + ε·sign y))."""
    at_least_zero("epsilon", epsilon)
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
    return Weighted("alpha_beta", _by_sides(Side(1, 0, _up, alpha), Side(0, 1, _down, -beta)))


def gamma(gamma: float = 0.25) -> Weighted:
    """Contributions of the output's sign count 1 + γ times."""
    at_least_zero("gamma", gamma)
    raised = Side(1 + gamma, 1, lambda b: b + gamma * _up(b), sign=1)
    lowered = Side(1, 1 + gamma, lambda b: b + gamma * _down(b), sign=-1)
    return Weighted("gamma", _by_sides(raised, lowered))


def at_least_zero(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise not_allowed(name, value, "a number, at least 0")


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
    ends = [torch.as_tensor(end, device="cpu") for end in (low, high) if end is not None]
    if len(ends) == 2 and bool((ends[0] > ends[1]).any()):
        raise ParameterError(
            f"low={low!r} is above high={high!r}.\n  Give the least and the largest value of an input."
        )

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
