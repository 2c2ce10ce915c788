"""LRP's rules for ops with weights: dense layers, convolutions, products with a constant.

The rules come first, one function each with its paper; below them is how they are computed. Most are made of two maps,
u = x·W and v = |x|·|W|, because x⁺W⁺ + x⁻W⁻ = ½(u + v) and x⁺W⁻ + x⁻W⁺ = ½(u − v). Where one of these is a small
difference of large numbers, it is summed by itself instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.errors import ParameterError
from whence.rules.linear_maps import Maps, Pull
from whence.rules.lrp_division import Divide
from whence.util.checks import not_allowed

# by kind, like the output; its last axis may be summed already. Of "handed on", which is not lost, "rounding" may be
Lost = dict[str, Tensor]
Shared = tuple[Tensor, Lost]


@dataclass(frozen=True, eq=False)
class Weighted:
    """A rule for ops with weights; `divide` of its own if it is not the composite's."""

    name: str
    run: Callable[[Maps, Tensor, Divide], Shared]
    divide: Divide | None = None

    def __call__(self, maps: Maps, r: Tensor, divide: Divide) -> Shared:
        relevance, lost = self.run(maps, r.to(maps.x.dtype), self.divide or divide)
        return relevance.to(r.dtype), lost


def epsilon(epsilon: float = 1e-6) -> Weighted:
    """LRP-ε: x ⊙ Wᵀ(R / (y + ε·sign y)) (Bach et al. 2015)."""
    at_least_zero("epsilon", epsilon)
    return Weighted("epsilon", _whole, Divide(epsilon))


def gamma(gamma: float = 0.25) -> Weighted:
    """LRP-γ: contributions of the output's sign count 1 + γ times (Montavon et al. 2019)."""
    at_least_zero("gamma", gamma)
    raised = Side(1 + gamma, 1, lambda b: b + gamma * _up(b), sign=1)
    lowered = Side(1, 1 + gamma, lambda b: b + gamma * _down(b), sign=-1)
    return Weighted("gamma", _by_sides(raised, lowered))


def alpha_beta(alpha: float = 2.0, beta: float = 1.0) -> Weighted:
    """LRP-αβ: α × what raises the output − β × what lowers it (Bach et al. 2015)."""
    if abs(alpha - beta - 1) > 1e-9 or alpha < 1:
        raise ParameterError(f"alpha={alpha}, beta={beta} are not allowed.\n  Give alpha ≥ 1 and beta = alpha − 1.")
    if not beta:
        return Weighted("alpha_beta", _raising(biased=True))
    return Weighted("alpha_beta", _apart(alpha, beta))


def z_plus() -> Weighted:
    """LRP-z⁺: contributions that raise the output, and a positive bias (Montavon et al. 2017)."""
    return Weighted("z_plus", _raising(biased=True))


def chefer() -> Weighted:
    """Pairs with x·w ≥ 0 alone, and no bias (Chefer et al. 2021, eq. 3)."""
    return Weighted("chefer", _raising(biased=False))


def orig() -> Weighted:
    """A baseline of Chefer et al. 2021: what x⁺ and what x⁻ raises, each with all of R, which is thus counted twice."""

    def terms(x: Tensor, w: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        return [(x.clamp(min=0), w.clamp(min=0)), (x.clamp(max=0), w.clamp(max=0))]

    return Weighted("orig", _by_terms(terms, together=False, double=True))


def flat() -> Weighted:
    """Evenly over the inputs (Lapuschkin et al. 2019)."""
    return Weighted("flat", _by_terms(lambda x, w: [(torch.ones_like(x), torch.ones_like(w))]))


def w_square() -> Weighted:
    """By the square of the weight (Montavon et al. 2017)."""
    square = lambda b: b * b  # noqa: E731
    return Weighted("w_square", _by_terms(lambda x, w: [(torch.ones_like(x), w * w)], bias=square))


def z_box(low: Any = None, high: Any = None) -> Weighted:
    """z^B, for inputs between two bounds: xW − lW⁺ − hW⁻ (Montavon et al. 2017).

    By default the bounds are each row's own least and largest value.
    """
    ends = [torch.as_tensor(end, device="cpu") for end in (low, high) if end is not None]
    if len(ends) == 2 and bool((ends[0] > ends[1]).any()):
        raise ParameterError(
            f"low={low!r} is above high={high!r}.\n  Give the least and the largest value of an input."
        )

    def terms(x: Tensor, w: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        bounds = [_bound(x, low, Tensor.amin), _bound(x, high, Tensor.amax)]
        return [(x, w), (-bounds[0], w.clamp(min=0)), (-bounds[1], w.clamp(max=0))]

    return Weighted("z_box", _by_terms(terms))


RULES: dict[str, Callable[..., Weighted]] = {
    rule.__name__: rule for rule in (epsilon, gamma, alpha_beta, z_plus, chefer, orig, flat, w_square, z_box)
}


def at_least_zero(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise not_allowed(name, value, "a number, at least 0")


# ---- all contributions ----


def _whole(maps: Maps, r: Tensor, divide: Divide) -> Shared:
    """All contributions and the bias: z = u + b = y."""
    s = divide(r, maps.y)
    lost = {"epsilon": maps.total(divide.lost(r, s, maps.y))}
    if isinstance(maps.bias, Tensor):
        lost["bias"] = maps.total(s * maps.bias)
    if maps.rounds:
        rounding, handed = divide.rounding(r, maps.y, maps.size, torch.finfo(r.dtype).eps)
        lost |= {"rounding": maps.total(rounding), "handed on": maps.total(handed)}
    return maps.back(s).mul_(maps.x), lost


# ---- contributions that raise the output ----


def _raising(biased: bool) -> Callable[[Maps, Tensor, Divide], Shared]:
    """Contributions that raise the output, and a positive bias if it takes part: z = ½(u + v) + b⁺.

    What is divided by is 2z, so that nothing has to be halved.
    """

    def run(maps: Maps, r: Tensor, divide: Divide) -> Shared:
        bias = maps.bias.clamp(min=0) if biased and isinstance(maps.bias, Tensor) else None
        size, below, delicate, pull = maps.once("raising", lambda whole: _twice_raising(whole, bias, divide))
        if delicate:
            return _raising_alone(maps, r, divide, bias, None if size is not None else maps.here(below), pull)
        s = torch.div(r, below, out=below) if maps.memo is None else r / maps.here(below)
        lost = {"epsilon": 2 * divide.epsilon * maps.total(s)}
        if bias is not None:
            lost["bias"] = 2 * maps.total(s * bias)
        if size is None:
            return pull(s).mul_(maps.x), lost
        return maps.back(s).mul_(maps.x).addcmul_(maps.here(size), pull(s)), lost

    return run


def _twice_raising(
    maps: Maps, bias: Tensor | None, divide: Divide
) -> tuple[Tensor | None, Tensor, bool, Pull]:  # fmt: skip
    """|x|, twice the denominators, whether they are delicate (else they are stabilised), how signals come back to |x|.

    Behind a ReLU, where no x is negative, 2W⁺ alone is needed, and |x| is None.
    """
    shift = divide.epsilon if bias is None else bias + divide.epsilon
    if not maps.has_negative:
        twice, pull = maps.apply(maps.x, maps.weight.clamp(min=0).mul_(2))
        all_magnitudes = twice - maps.y if isinstance(maps.bias, float) else (twice - maps.y).add_(maps.bias)
        delicate = _is_delicate(twice, all_magnitudes.amax() if twice.numel() else 0.0)
        return None, twice if delicate else twice.add_(2 * shift), delicate, pull
    size = maps.x.abs()
    twice, pull = maps.apply(size, maps.weight.abs())
    largest = twice.amax() if twice.numel() else 0.0
    twice += _without_bias(maps, largest)
    delicate = _is_delicate(twice, largest)
    return size, twice if delicate else twice.add_(2 * shift), delicate, pull


_DELICATE = 1e-2  # a sum of one sign that is smaller than this part of all magnitudes


def _is_delicate(z: Tensor, largest: Any) -> bool:
    """Whether rounding would show in the smallest sum of one sign."""
    return z.numel() > 0 and bool(z.amin() <= _DELICATE * largest)


def _raising_alone(
    maps: Maps, r: Tensor, divide: Divide, bias: Tensor | None, twice: Tensor | None, back: Pull
) -> Shared:  # fmt: skip
    """The same, sums of each sign by themselves: an empty set is exactly 0. They are known `twice` behind a ReLU."""
    z, pull = maps.raising() if twice is None else (twice / 2, lambda s: back(s).mul_(maps.x / 2))
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


# ---- contributions of either sign, each with a denominator ----


def _apart(alpha: float, beta: float) -> Callable[[Maps, Tensor, Divide], Shared]:
    """α·R by what raises the output, −β·R by what lowers it; large temporaries cost as much as the maps themselves."""

    def run(maps: Maps, r: Tensor, divide: Divide) -> Shared:
        sides = ((maps.raising(), alpha, _up(maps.bias), 1), (maps.lowering(), -beta, _down(maps.bias), -1))
        parts, lost = [], dict.fromkeys(("bias", "empty", "epsilon"), torch.zeros_like(maps.total(r)))
        for (z, pull), share, bias, sign in sides:
            empty = None if bool(z.all()) else z == 0
            s = torch.div(r, z.add_(bias + sign * divide.epsilon), out=z).mul_(share)
            if empty is not None:
                s.masked_fill_(empty, 0.0)
                lost["empty"] = lost["empty"] + share * maps.total(r * empty)
            total = maps.total(s)
            if isinstance(bias, Tensor):  # a convolution's is the same along the axis that was summed over
                lost["bias"] = lost["bias"] + (total * bias if bias.shape[-1:] == (1,) else maps.total(s * bias))
            lost["epsilon"] = lost["epsilon"] + sign * divide.epsilon * total
            parts.append(pull(s))
        return parts[0].add_(parts[1]), lost

    return run


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


def _by_sides(*sides: Side) -> Callable[[Maps, Tensor, Divide], Shared]:
    def run(maps: Maps, r: Tensor, divide: Divide) -> Shared:
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


def _up(b: Any) -> Any:
    return b.clamp(min=0) if isinstance(b, Tensor) else max(b, 0.0)


def _down(b: Any) -> Any:
    return b.clamp(max=0) if isinstance(b, Tensor) else min(b, 0.0)


# ---- other values in the places of x and W ----


def _by_terms(
    terms: Callable[[Tensor, Tensor], Sequence[tuple[Tensor, Tensor]]], *, together: bool = True,
    bias: Callable[[Any], Any] | None = None, double: bool = False,
) -> Callable[[Maps, Tensor, Divide], Shared]:  # fmt: skip
    """Rules of other values in both places: z = Σ L(x', W'), with one denominator for all or one for each."""

    def run(maps: Maps, r: Tensor, divide: Divide) -> Shared:
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


def _bound(x: Tensor, given: Any, own: Any) -> Tensor:
    if given is None:
        return own(x, tuple(range(1, x.dim())), keepdim=True).expand_as(x) if x.dim() > 1 else own(x).expand_as(x)
    return torch.as_tensor(given, dtype=x.dtype, device=x.device).expand_as(x)
