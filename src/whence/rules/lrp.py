"""LRP's stream carries relevance itself: every op but views hands on what it gets, or says where it went.

A rule takes a call and the relevance R of its output and gives the relevance of each live input. `relevance_rules`
makes the table for a composite: which rule each op with weights gets, how one divides, and how a sum is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import Ahead, Back, Call, Gradients, Rule
from whence.engine.expand import EXPANSIONS
from whence.engine.trackers.provenance import Origin
from whence.rules import lrp_weights
from whence.rules.ledger import Note
from whence.rules.lrp_weights import Divide, Lost, Weighted

_AS_ONE = frozenset("layer_norm rms_norm group_norm instance_norm normalize sort msort topk kthvalue median".split())
RELEVANCE_EXPAND = frozenset(EXPANSIONS) - _AS_ONE
_HIDING = -1e4  # what an additive mask writes is below this


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
    product = _Product(composite.divide)
    return {
        "*": by_eq_1,
        **dict.fromkeys(("linear", "convolution"), _WithWeights(composite)),
        **dict.fromkeys("sum average_pool cumsum scatter_add interpolate fourier vector_norm std".split(), linear),
        **dict.fromkeys("elementwise softmax norm scale batch_norm dropout".split(), Ahead(_Identity(by_eq_1))),
        "add": Ahead(_Sum(composite)),
        **dict.fromkeys(("multiply", "divide", "matmul", "einsum", "bilinear", "prod"), product),
        "max": winner,
        **dict.fromkeys(("concatenate", "where", "write"), Ahead(_Joined(), when=lambda call: True)),
        **dict.fromkeys(("pad", "unfold", "im2col"), Ahead(_Joined())),
    }


def _first(m: Any) -> Tensor:
    """The relevance of an op's (first) output."""
    return m if isinstance(m, Tensor) else m[0]


def _pairs(call: Call, given: Sequence[Tensor | None]) -> list[Tensor | None]:
    """x ⊙ what came back, of complex numbers each part by itself; an infinity, such as a masked score, takes none."""
    parts = [None if g is None else _times(x, g) for x, g in zip(call.x, given, strict=True)]
    return [
        p if p is None or p.is_complex() or bool(p.sum().isfinite()) else p.masked_fill(x.isinf(), 0.0)
        for x, p in zip(call.x, parts, strict=True)
    ]


def wide(t: Tensor) -> Tensor:
    """Halves are too short for what divides and sums."""
    return t.float() if t.is_floating_point() and torch.finfo(t.dtype).bits < 32 else t


def _times(a: Tensor, b: Tensor) -> Tensor:
    if not a.is_complex():
        return a * b
    return torch.view_as_complex(torch.view_as_real(a.resolve_conj()) * torch.view_as_real(b.resolve_conj()))


def _over(divide: Divide, a: Tensor, b: Tensor) -> Tensor:
    if not b.is_complex():
        return divide(wide(a), wide(b)).to(b.dtype)
    parts = [torch.view_as_real(t.resolve_conj()).contiguous() for t in (a.to(b.dtype), b)]
    return torch.view_as_complex(divide(*parts))


# ---- one input, one output: handed on ----


class _Named:
    """A rule with the name that traces show."""

    title = ""

    @property
    def __name__(self) -> str:
        return self.title


class _Identity(_Named):
    """Each entry's relevance is its input's."""

    title = "identity"

    def __init__(self, otherwise: _Generic) -> None:
        self.otherwise = otherwise

    def __call__(self, call: Call) -> Back:
        shape = call.inputs[0].shape
        if len(call.inputs) > 1 or call.y.is_complex() or call.y.dim() < len(shape):
            return lambda m: self.otherwise(call, m)
        return lambda m: _first(m).sum_to_size(shape)


def winner(call: Call, m: Any) -> Gradients:
    """A maximum's relevance goes where the maximum came from."""
    found = call.vjp(m)
    if call.loose or len(call.inputs) > 1:
        call.note.lose_rest("constants", _first(m), found)
    return found


class _Joined(_Named):
    """Entries that come from a constant, such as a class token, take their relevance with them."""

    title = "joined"

    def __call__(self, call: Call) -> Back:
        note = call.note

        def back(m: Any) -> Gradients:
            found = call.derivative_at(call.x, m)
            note.lose_rest("constants", _first(m), found)
            return found

        return back


# ---- eq. 1 ----


class _Generic(_Named):
    """Eq. 1 for any op: R_j = x_j Σ_i ∂L_i/∂x_j · R_i/L_i; named in the receipt."""

    generic = True
    title = "eq. 1"

    def __init__(self, divide: Divide) -> None:
        self.divide = divide

    def __call__(self, call: Call, m: Any) -> Gradients:
        signals = [m] if isinstance(m, Tensor) else list(m)
        signals = [
            _over(self.divide, r, y) if y.is_floating_point() or y.is_complex() else r
            for r, y in zip(signals, call.ys, strict=True)
        ]
        found = _pairs(call, call.vjp(signals if len(signals) > 1 else signals[0]))
        call.note.lose_rest("unruled", _first(m), found)
        return found


class _Homogeneous(_Generic):
    """Eq. 1 where it loses nothing: sums, means and other ops with f(cx) = c·f(x)."""

    generic = False

    def __call__(self, call: Call, m: Any) -> Gradients:
        if call.name in ("view_as_real", "view_as_complex"):
            return call.vjp(m)
        r = _first(m)
        s = _over(self.divide, r, call.y)
        found = _pairs(call, call.vjp(s))
        _write_off(call.note, self.divide, r, s, call.y)
        return found


def _write_off(note: Note, divide: Divide, r: Tensor, s: Tensor, y: Tensor) -> None:
    """What dividing by y lost: all of it where y is 0, and what keeps the quotient small."""
    if y.is_complex():
        r, s, y = (torch.view_as_real(t.to(y.dtype).resolve_conj()) for t in (r, s, y))
    note.lose("epsilon", divide.lost(r, s, y))


# ---- weights ----


class _WithWeights(_Named):
    """Dense layers and convolutions: by the composite's choice."""

    def __init__(self, composite: Composite) -> None:
        self.composite, self.title = composite, composite.name

    def named(self, call: Call) -> str:
        """For traces: the rule that this op gets, where the forward pass can tell."""
        return self.title if self.composite.late else self.composite.weigh(call).name

    def __call__(self, call: Call, r: Tensor) -> Gradients:
        rule = self.composite.weigh(call)
        if call.name == "linear" and len(call.inputs) == 1 and call.args[0] is call.inputs[0] and len(call.args) > 1:
            found, lost = self._dense(rule, call, r)
        else:
            maps = lrp_weights.maps_of(call)
            if maps is None:
                return self._without(call, r)
            maps.rows_last = call.note.place is not None and call.note.place.axis == call.y.dim() - 1
            found, lost = rule(maps, r, self.composite.divide)
        for kind, amount in lost.items():
            call.note.lose(kind, amount)
        return found

    def _dense(self, rule: Weighted, call: Call, r: Tensor) -> tuple[Tensor, Lost]:
        """F.linear, at the positions that have relevance."""
        weight, bias = call.args[1], call.args[2] if len(call.args) > 2 else None
        x, y, lead = call.x[0], call.y, r.shape[:-1]
        rows = [t.reshape(-1, t.shape[-1]) for t in (x, y, r)]
        seen = None
        if 2 * int((rows[2][:, 0] != 0).sum()) < len(rows[2]):
            seen = (rows[2] != 0).any(1).nonzero().flatten()
            rows = [t[seen] for t in rows]
        found, lost = rule(lrp_weights.dense(rows[0], rows[1], weight, bias), rows[2], self.composite.divide)
        if seen is not None:
            found = x.new_zeros(lead.numel(), x.shape[-1]).index_copy_(0, seen, found)
            lost = {kind: a.new_zeros(lead.numel(), 1).index_copy_(0, seen, a) for kind, a in lost.items()}
        return found.view(x.shape), {kind: amount.view(*lead, 1) for kind, amount in lost.items()}

    def _without(self, call: Call, r: Tensor) -> Gradients:
        """A linear map without a weight that could be found."""
        found = _pairs(call, call.vjp(_over(self.composite.divide, r, call.y)))
        call.note.lose_rest("bias", r, found)
        return found


# ---- sums ----


class _Sum(_Named):
    """A sum of two: a skip connection's branches share, images of one tensor are one linear map."""

    title = "sum"

    def __init__(self, composite: Composite) -> None:
        self.divide, self.shares, self.authors = composite.divide, composite.shares, composite.authors

    def __call__(self, call: Call) -> Back:
        call.check()
        terms = terms_of(call)
        shapes = [x.shape for x in call.inputs]
        live = [t for t in terms if t.place is not None]
        if len(live) == 1 and (len(terms) == 1 or not self._counts(terms, live[0])):
            return lambda r: r.sum_to_size(shapes[0])
        if stands(call, terms):  # all of it is the token's
            return lambda r: r.sum_to_size(shapes[0])
        places = [t.place for t in live if t.place is not None]
        weights = _weights(*(call.origins[i] for i in places)) if len(live) > 1 else None
        if weights is not None:  # no branches: what one of them is made of, the other one is too
            return lambda r: _placed(shapes, [(i, r * w) for i, w in zip(places, weights, strict=True) if w])
        note, shares = call.note, self.shares and len({id(call.origins[i].image) for i in places}) == len(live)
        unchanged = call.guard()

        def back(r: Tensor) -> Gradients:
            unchanged()
            return self._back(note, terms, shapes, shares, r)

        return back

    def _counts(self, terms: Sequence[_Term], live: _Term) -> bool:
        """Whether the constant takes part: a tensor does, and a bias if the composite says so."""
        constant = next(t for t in terms if t is not live)
        return constant.value.numel() > 1 and not (self.authors and constant.bias)

    def _back(self, note: Note, terms: Sequence[_Term], shapes: Any, shares: bool, r: Tensor) -> Gradients:
        values = [t.value for t in terms]
        y, r = sum(values[1:], values[0]), wide(r)
        came = r
        if self.authors and note.life.uses > 1:
            r = self.divide(r, y) * y
        s = self.divide(r, y)
        endless = not bool(y.sum().isfinite())
        parts = [
            (s * value).masked_fill_(value.isinf(), 0.0) if endless or t.hides else s * value
            for t, value in zip(terms, values, strict=True)
        ]
        lost = None if shares else self.divide.lost(r, s, y)
        constant = next((t.value for t in terms if t.place is None and t.only_hides), None)
        if constant is not None:  # where a mask adds 0, to what it shows, nothing is divided
            parts = [
                p if t.place is None else torch.where(constant == 0, r, p) for t, p in zip(terms, parts, strict=True)
            ]
            lost = None if lost is None else torch.where(constant == 0, 0.0, lost)
        if lost is None:
            parts = self._shared(note, came, r, parts)
        else:
            note.lose("epsilon", lost)
        for term, part in zip(terms, parts, strict=True):
            if term.place is None:
                note.lose(term.kind, part)
        return _placed(shapes, [(t.place, p) for t, p in zip(terms, parts, strict=True) if t.place is not None])

    def _shared(self, note: Note, came: Tensor, r: Tensor, parts: list[Tensor]) -> list[Tensor]:
        """Each part rescaled to its share |Σr_a| / (|Σr_a| + |Σr_b|) of the row's relevance."""
        total = note.sums(r)
        sums = [note.sums(part) for part in parts]
        size = torch.stack(sums).abs().sum(0)
        factors = [torch.where(size == 0, 0.0, s.sign() * total / size) for s in sums]
        start = total if came is r else note.sums(came)
        note.lose_rows("epsilon", start - sum(f * s for f, s in zip(factors, sums, strict=True)))
        return [part.mul_(note.spread(f, part)) for f, part in zip(factors, parts, strict=True)]


@dataclass(frozen=True, eq=False)
class _Term:
    """An operand of a sum, with its sign; `place` among the live inputs, or None for a constant."""

    value: Tensor
    place: int | None
    bias: bool = False

    @property
    def hides(self) -> bool:
        """Whether it is a mask."""
        return self.place is None and not self.bias and bool((self.value < _HIDING).any())

    @property
    def only_hides(self) -> bool:
        """Whether it changes nothing but what it hides."""
        return not self.bias and bool(((self.value == 0) | (self.value < _HIDING)).all())

    @property
    def kind(self) -> str:
        """Under which name a constant's share is written off."""
        return "bias" if self.bias else "mask" if self.hides else "constants"


def stands(call: Call, terms: Sequence[_Term]) -> bool:
    """Whether a constant is added to a token at its own position, and is to give its share to the token."""
    if len(terms) != 2 or len(call.inputs) != 1 or not call.note.ledger.gives_back or call.origins[0].alone is None:
        return False
    constant = next((t for t in terms if t.place is None), None)
    return constant is not None and not constant.bias and constant.value.numel() > 1 and not constant.hides


def signs_of(call: Call) -> tuple[Any, Any]:
    """By what the operands of a sum are multiplied."""
    alpha = call.kwargs.get("alpha", 1)
    return {"sub": (1, -alpha), "subtract": (1, -alpha), "rsub": (-alpha, 1)}.get(call.name, (1, alpha))


def terms_of(call: Call) -> list[_Term]:
    given = call.args[:2]
    if call.name in ("neg", "negative") or len(given) < 2:
        return [_Term(call.x[0], 0)]
    y = call.y
    terms = []
    for value, sign in zip(given, signs_of(call), strict=True):
        place = next((i for i, x in enumerate(call.inputs) if x is value), None)
        tensor = (
            wide(value.detach())
            if isinstance(value, Tensor)
            else torch.as_tensor(value, dtype=y.dtype, device=y.device)
        )
        loose = any(value is t for t in call.loose)
        bias = place is None and isinstance(value, Tensor) and not loose and value.dim() == 1
        terms.append(_Term(tensor if sign == 1 else sign * tensor, place, bias))
    return terms


def _weights(a: Origin, b: Origin) -> tuple[float, float] | None:
    """How two operands that are made of one tensor, entry by entry, share; None for branches."""
    if b.mean is a.image and a.mean is None:
        return (1.0, 0.0)  # centring
    if a.mean is b.image and b.mean is None:
        return (0.0, 1.0)
    return _by_point(a, b)


def _by_point(a: Origin, b: Origin) -> tuple[float, float] | None:
    """Functions of one tensor, entry by entry, lead back to it: by the one that is a multiple of it, if one is."""
    if a.point is not b.point:
        return None
    if a.straight != b.straight:
        return (1.0, 0.0) if a.straight else (0.0, 1.0)
    return (0.5, 0.5)


def _placed(shapes: Sequence[torch.Size], parts: Sequence[tuple[int | None, Tensor | None]]) -> list[Tensor | None]:
    """One tensor per live input, of its shape."""
    found: list[Tensor | None] = [None] * len(shapes)
    for place, part in parts:
        if place is not None and part is not None:
            fitting, before = part.sum_to_size(shapes[place]), found[place]
            found[place] = fitting if before is None else before + fitting
    return found


# ---- products ----


class _Product(_Named):
    """A product of activations: each operand x ⊙ vjp(R/y), then an equal part of it."""

    title = "product"

    def __init__(self, divide: Divide) -> None:
        self.divide = divide

    def __call__(self, call: Call, r: Tensor) -> Gradients:
        weights = leaders(call)
        if weights is not None:
            shapes = [x.shape for x in call.inputs]
            return _placed(shapes, [(i, r * w if w else None) for i, w in enumerate(weights)])
        s = _over(self.divide, r, call.y)
        _write_off(call.note, self.divide, r, s, call.y)
        call.note.halve(r)
        return _pairs(call, call.vjp(s / factors(call)))


def factors(call: Call) -> int:
    """How many live factors a product has: a square has two."""
    if call.family == "prod":
        return max(1, call.inputs[0].numel() // max(1, call.y.numel()))
    given = [t for a in (*call.args, *call.kwargs.values()) for t in (a if isinstance(a, list | tuple) else [a])]
    return max(1, sum(any(t is x for x in call.inputs) for t in given))


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
    return _by_point(a, b) if same else None
