"""LRP: every op but views hands on the relevance that it gets, or says where it went (Bach et al. 2015).

A rule takes a call and the relevance R of its output and gives the relevance of each live input. `relevance_rules`
makes the table for a composite. Here are the ops that hand their relevance on, eq. 1 for any op, and which rule an op
with weights gets; those rules are in `lrp_weights`, sums in `lrp_sums`, products in `lrp_products`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from whence.engine.call import Back, Call, Gradients, Rule
from whence.engine.dense import positions
from whence.engine.expand import EXPANSIONS
from whence.engine.nodes import Ahead
from whence.rules import linear_maps
from whence.rules.lrp_division import (
    Divide,
    Named,
    derivative_of,
    first,
    has_complex,
    note_rounding,
    quotient,
    times_input,
    write_off,
)
from whence.rules.lrp_products import Product
from whence.rules.lrp_sums import Sum
from whence.rules.lrp_weights import Lost, Weighted

_AS_ONE = frozenset("layer_norm rms_norm group_norm instance_norm normalize sort msort topk kthvalue median".split())
RELEVANCE_EXPAND = frozenset(EXPANSIONS) - _AS_ONE


@dataclass(frozen=True, eq=False)
class Composite:
    """Which rule each op with weights gets, by its call; how to divide; and the rules of sums and biases."""

    name: str
    weigh: Callable[[Call], Weighted]
    divide: Divide
    shares: bool = True  # a sum's branches are rescaled to their shares of each row's relevance
    late: bool = False  # some choices count from the end
    unmet: set[str] = field(default_factory=set)  # modules that were named and not met
    authors: bool = False  # no bias takes part, and copies of a sum are divided as the sum itself is


def relevance_rules(composite: Composite) -> dict[str, Rule]:
    """The table of one composite."""
    by_eq_1 = _Generic(composite.divide)
    linear = _Homogeneous(composite.divide)
    product = Product(composite.divide)
    return {
        "*": by_eq_1,
        **dict.fromkeys(("linear", "convolution"), _WithWeights(composite)),
        **dict.fromkeys("sum average_pool cumsum scatter_add interpolate fourier vector_norm std".split(), linear),
        **dict.fromkeys("elementwise softmax norm scale batch_norm dropout".split(), Ahead(_Identity(by_eq_1))),
        "add": Ahead(Sum(composite.divide, composite.shares, composite.authors, by_eq_1)),
        **dict.fromkeys(("multiply", "divide", "matmul", "einsum", "bilinear", "prod"), product),
        "max": winner,
        **dict.fromkeys(("concatenate", "where", "write"), Ahead(_Joined(), when=lambda call: True)),
        **dict.fromkeys(("pad", "unfold", "im2col"), Ahead(_Joined())),
    }


# ---- one input, one output: handed on ----


class _Identity(Named):
    """Each entry's relevance is its input's."""

    title = "identity"

    def __init__(self, otherwise: _Generic) -> None:
        self.otherwise = otherwise

    def __call__(self, call: Call) -> Back:
        shape = call.inputs[0].shape
        if len(call.inputs) > 1 or has_complex(call) or call.y.dim() < len(shape):
            return lambda m: self.otherwise(call, m)
        return lambda m: first(m).sum_to_size(shape)


def winner(call: Call, m: Any) -> Gradients:
    """A maximum's relevance goes where the maximum came from."""
    relevance = call.vjp(m)
    if call.loose or len(call.inputs) > 1:
        call.note.lose_rest("constants", first(m), relevance)
    return relevance


class _Joined(Named):
    """Entries that come from a constant, such as a class token, take their relevance with them."""

    title = "joined"

    def __call__(self, call: Call) -> Back:
        note = call.note

        def back(m: Any) -> Gradients:
            relevance = derivative_of(call, m)
            note.lose_rest("constants", first(m), relevance)
            return relevance

        return back


# ---- eq. 1 ----


class _Generic(Named):
    """Eq. 1 for any op: R_j = x_j Σ_i ∂L_i/∂x_j · R_i/L_i; named in the receipt."""

    generic = True
    title = "eq. 1"

    def __init__(self, divide: Divide) -> None:
        self.divide = divide

    def __call__(self, call: Call, m: Any) -> Gradients:
        signals = [m] if isinstance(m, Tensor) else list(m)
        signals = [
            quotient(self.divide, r, y) if y.is_floating_point() or y.is_complex() else r
            for r, y in zip(signals, call.ys, strict=True)
        ]
        relevance = times_input(call, call.vjp(signals if len(signals) > 1 else signals[0]))
        call.note.lose_rest("unruled", first(m), relevance)
        return relevance


class _Homogeneous(_Generic):
    """Eq. 1 where it loses nothing: sums, means and other ops with f(cx) = c·f(x)."""

    generic = False

    def __call__(self, call: Call, m: Any) -> Gradients:
        if call.name in ("view_as_real", "view_as_complex"):
            return call.vjp(m)
        r = first(m)
        s = quotient(self.divide, r, call.y)
        relevance = times_input(call, call.vjp(s))
        write_off(call.note, self.divide, r, s, call.y)
        note_rounding(call, self.divide, r)
        return relevance


# ---- weights ----


class _WithWeights(Named):
    """Dense layers and convolutions: by the composite's choice."""

    def __init__(self, composite: Composite) -> None:
        self.composite, self.title = composite, composite.name

    def named(self, call: Call) -> str:
        """For traces: the rule that this op gets, where the forward pass can tell."""
        return self.title if self.composite.late else self.composite.weigh(call).name

    def __call__(self, call: Call, r: Tensor) -> Gradients:
        if has_complex(call):
            return self._without(call, r)
        rule = self.composite.weigh(call)
        matrix = linear_maps.is_dense(call)
        if matrix is not None:
            relevance, lost = self._dense(rule, call, r, *matrix)
        else:
            maps = linear_maps.maps_of(call)
            if maps is None:
                return self._without(call, r)
            maps.rows_last = call.note.row_axis is not None and call.note.row_axis.axis == call.y.dim() - 1
            maps.rounds = call.note.ledger.rounds
            relevance, lost = rule(maps, r, self.composite.divide)
        if "rounding" in lost:
            call.note.round(lost.pop("rounding"), lost.pop("handed on"))
        for kind, amount in lost.items():
            call.note.lose(kind, amount)
        return relevance

    def _dense(self, rule: Weighted, call: Call, r: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Lost]:
        """A dense layer, at the positions that have relevance."""
        x, y, lead = call.x[0], call.y, r.shape[:-1]
        rows = r.reshape(-1, r.shape[-1])
        seen = positions(rows)
        rows = rows if seen is None else rows[seen]
        memo = call.note.memo((weight.numel() + y.numel()) * y.element_size())
        maps = linear_maps.dense(x.flatten(0, -2), y.flatten(0, -2), weight, bias, memo, seen)
        maps.rounds = call.note.ledger.rounds
        relevance, lost = rule(maps, rows, self.composite.divide)
        if seen is not None:
            relevance = x.new_zeros(lead.numel(), x.shape[-1]).index_copy_(0, seen, relevance)
            lost = {kind: a.new_zeros(lead.numel(), 1).index_copy_(0, seen, a) for kind, a in lost.items()}
        return relevance.view(x.shape), {kind: amount.view(*lead, 1) for kind, amount in lost.items()}

    def _without(self, call: Call, r: Tensor) -> Gradients:
        """A linear map without a weight that could be found."""
        relevance = times_input(call, call.vjp(quotient(self.composite.divide, r, call.y)))
        call.note.lose_rest("bias", r, relevance)
        return relevance
