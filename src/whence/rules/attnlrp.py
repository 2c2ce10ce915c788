"""AttnLRP's signal: a multiplier m with relevance x ⊙ m, which linear ops carry as autograd does.

Products give each factor an equal part, elementwise functions multiply by y/x, norms hold their scale constant, softmax
takes its derivative. CP-LRP holds attention and gates constant as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import Back, Call, Gradients, Rule, derivative
from whence.engine.expand import EXPANSIONS
from whence.engine.nodes import Ahead
from whence.rules.lrp_division import derivative_of
from whence.rules.lrp_products import factors, leaders
from whence.rules.lrp_sums import signs_of, stands, terms_of

_AS_ONE = frozenset(
    "scaled_dot_product_attention layer_norm rms_norm grouped_mm sort msort topk kthvalue median".split()
)
UNIFORM_EXPAND = (frozenset(EXPANSIONS) - _AS_ONE) | {"odd_attention"}


def uniform_rules(constant: bool, positions: bool = False) -> dict[str, Rule]:
    """AttnLRP's table, or CP-LRP's, which holds attention and gates `constant`.

    `positions`: what is added to a token at its own position gives its share to the token.
    """
    product = constant_product if constant else uniform_product
    return {
        "elementwise": Ahead(ratio),
        **({"add": Ahead(given_back, when=_is_given_back, loose=False)} if positions else {}),
        "layer_norm": Ahead(held_norm),
        "rms_norm": Ahead(held_norm),
        **dict.fromkeys(("multiply", "divide", "matmul", "einsum", "bilinear", "prod"), product),
        "scaled_dot_product_attention": constant_attention if constant else uniform_attention,
        **dict.fromkeys(("softmax", "max"), derivative),
    }


def ratio(call: Call) -> Back:
    """y/x at an elementwise function; what it gives at 0 is a constant and takes its part away."""
    if len(call.inputs) > 1:
        return lambda m: [None if g is None else g / len(call.inputs) for g in call.derivative_at(call.x, m)]
    (x,), y, shape = call.x, call.y, call.inputs[0].shape
    step = torch.finfo(x.dtype).eps ** 0.5
    at_zero, near = (_value(call, point) for point in (0.0, step))
    ratios = (y - at_zero if at_zero else y) / x
    ratios = torch.where(x.abs() > step * 1e-2, ratios, (near - at_zero) / step)
    return lambda m: (m * ratios.conj()).sum_to_size(shape)


def _is_given_back(call: Call) -> bool:
    two = len(call.inputs) == 1 and len(call.args) > 1 and all(isinstance(a, Tensor) for a in call.args[:2])
    return two and stands(call, terms_of(call))


def given_back(call: Call) -> Back:
    """What stands at a token's own position multiplies the token's signal by y/x."""
    x, y = next(t.value for t in terms_of(call) if t.place is not None), call.y  # with its sign
    shape, there = call.inputs[0].shape, x.abs() > torch.finfo(x.dtype).tiny ** 0.5
    sign = signs_of(call)[0 if call.args[0] is call.inputs[0] else 1]
    ratios = sign * torch.where(there, y / torch.where(there, x, 1.0), 1.0)
    return lambda m: (m * ratios).sum_to_size(shape)


def _value(call: Call, point: float) -> float:
    """The function at one number, 0 where it has no value."""
    try:
        value = float(call.value_at([call.inputs[0].new_full((1,), point)]).flatten()[0])
    except (RuntimeError, IndexError):  # weights of its own per channel, such as PReLU's
        return 0.0 if point == 0 else point
    return value if abs(value) < 1e6 else 0.0


def held_norm(call: Call) -> Back:
    """A norm as a linear map: its mean is taken away, its scale is a constant."""
    given = dict(zip(("x", "shape", "weight", "bias", "eps"), call.args, strict=False)) | dict(call.kwargs)
    (x,) = call.x
    shape: Any = given.get("shape", given.get("normalized_shape"))
    axes = tuple(range(-len(tuple(shape)), 0))
    weight, centred = given.get("weight"), call.family == "layer_norm"
    if call.family == "rms_norm" and "eps" not in given:
        given["eps"] = given.pop("bias", None)  # rms_norm(x, shape, weight, eps)
    eps = given.get("eps", 1e-5)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    size = (x - x.mean(axes, keepdim=True) if centred else x).square().mean(axes, keepdim=True)
    scale = torch.rsqrt(size + eps)

    def back(m: Any) -> Gradients:
        m = m if isinstance(m, Tensor) else m[0]
        m = (m if weight is None else m * weight) * scale
        return m - m.mean(axes, keepdim=True) if centred else m

    return back


def uniform_product(call: Call, m: Tensor) -> Gradients:
    """An equal part for each factor; a normalisation's reciprocal and a function of the other factor get none."""
    weights = leaders(call)
    if weights is None:
        weights = (1 / factors(call),) * len(call.inputs)
    return _weighed(call.vjp(m, weights), weights)


def constant_product(call: Call, m: Tensor) -> Gradients:
    """What attention and gates multiply gets everything."""
    weights = leaders(call)
    if weights is None and len(call.inputs) == 2:
        a, b = call.origins
        for held in ("attends", "gates"):
            if weights is None and getattr(a, held) != getattr(b, held):
                weights = (0.0, 1.0) if getattr(a, held) else (1.0, 0.0)
    return uniform_product(call, m) if weights is None else _weighed(call.vjp(m, weights), weights)


def _weighed(given: Sequence[Tensor | None], weights: tuple[float, ...]) -> list[Tensor | None]:
    return [None if g is None or not w else g if w == 1 else g * w for g, w in zip(given, weights, strict=True)]


def uniform_attention(call: Call, m: Tensor) -> Gradients:
    """A fused attention: queries and keys get a quarter of the derivative each, values a half."""
    return _by_role(call, m, (0.25, 0.25, 0.5))


def constant_attention(call: Call, m: Tensor) -> Gradients:
    """A fused attention whose probabilities are constants."""
    return _by_role(call, m, (0.0, 0.0, 1.0))


def _by_role(call: Call, m: Tensor, shares: tuple[float, ...]) -> list[Tensor | None]:
    roles = dict(zip(("query", "key", "value"), call.args, strict=False)) | dict(call.kwargs)
    share = {id(roles[name]): s for name, s in zip(("query", "key", "value"), shares, strict=True)}
    weights = tuple(share[id(x)] for x in call.inputs)
    maps = roles["query"].shape[:-1].numel() * roles["key"].shape[-2]
    return _weighed(derivative_of(call, m, maps), weights)
