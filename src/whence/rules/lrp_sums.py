"""LRP through sums: the branches of a skip connection share, a bias, a mask or a position takes its part away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import Back, Call, Gradients, Rule
from whence.engine.trackers.provenance import Origin
from whence.rules.ledger import Note
from whence.rules.lrp_division import Divide, Named, by_input, has_complex, wide
from whence.rules.lrp_products import by_point

_HIDING = -1e4  # what an additive mask writes is below this


class Sum(Named):
    """A sum of two: a skip connection's branches share, linear maps of one tensor add up to one."""

    title = "sum"

    def __init__(self, divide: Divide, shares: bool, authors: bool, otherwise: Rule) -> None:
        self.divide, self.shares, self.authors = divide, shares, authors
        self.otherwise = otherwise  # for complex numbers

    def __call__(self, call: Call) -> Back:
        call.check()
        if has_complex(call):
            return lambda m: self.otherwise(call, m)
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
            return lambda r: by_input(shapes, [(i, r * w) for i, w in zip(places, weights, strict=True) if w])
        note, shares = call.note, self.shares and len({id(call.origins[i].linear_source) for i in places}) == len(live)
        unchanged = call.guard()

        def back(r: Tensor) -> Gradients:
            unchanged()
            return self._back(note, terms, shapes, shares, r)

        return back

    def _counts(self, terms: Sequence[Term], live: Term) -> bool:
        """Whether the constant takes part: a tensor does, and a bias if the composite says so."""
        constant = next(t for t in terms if t is not live)
        return constant.value.numel() > 1 and not (self.authors and constant.bias)

    def _back(self, note: Note, terms: Sequence[Term], shapes: Any, shares: bool, r: Tensor) -> Gradients:
        values = [t.value for t in terms]
        fine = torch.finfo(r.dtype).eps
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
        if note.ledger.rounds and len(values) > 1:
            self._round(note, r if constant is None else r.masked_fill(constant == 0, 0.0), values, y, fine, endless)
        if lost is None:
            parts = self._shared(note, came, r, parts)
        else:
            note.lose("epsilon", lost)
        for term, part in zip(terms, parts, strict=True):
            if term.place is None:
                note.lose(term.kind, part)
        return by_input(shapes, [(t.place, p) for t, p in zip(terms, parts, strict=True) if t.place is not None])

    def _round(self, note: Note, r: Tensor, values: Sequence[Tensor], y: Tensor, fine: float, endless: bool) -> None:
        rounding, handed = self.divide.rounding(r, y, values[0].abs() + values[1].abs(), fine)
        if endless:
            rounding, handed = rounding.nan_to_num(0.0, 0.0, 0.0), handed.nan_to_num(0.0, 0.0, 0.0)
        note.round(rounding, handed)

    def _shared(self, note: Note, came: Tensor, r: Tensor, parts: list[Tensor]) -> list[Tensor]:
        """Each part rescaled to its share |Σr_a| / (|Σr_a| + |Σr_b|) of the row's relevance."""
        total = note.sums(r)
        sums = [note.sums(part) for part in parts]
        size = torch.stack(sums).abs().sum(0)
        factors = [torch.where(size == 0, 0.0, s.sign() * total / size) for s in sums]
        start = total if came is r else note.sums(came)
        note.lose_rows("epsilon", start - sum(f * s for f, s in zip(factors, sums, strict=True)))
        return [part.mul_(note.spread(f, part)) for f, part in zip(factors, parts, strict=True)]


def _weights(a: Origin, b: Origin) -> tuple[float, float] | None:
    """How two operands that are made of one tensor, entry by entry, share; None for branches."""
    if b.mean is a.linear_source and a.mean is None:
        return (1.0, 0.0)  # centring
    if a.mean is b.linear_source and b.mean is None:
        return (0.0, 1.0)
    return by_point(a, b)


@dataclass(frozen=True, eq=False)
class Term:
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


def terms_of(call: Call) -> list[Term]:
    given = call.args[:2]
    if call.name in ("neg", "negative") or len(given) < 2:
        return [Term(call.x[0], 0)]
    terms = []
    for value, sign in zip(given, signs_of(call), strict=True):
        place = next((i for i, x in enumerate(call.inputs) if x is value), None)
        tensor = (
            wide(value.detach())
            if isinstance(value, Tensor)
            else torch.as_tensor(value, dtype=call.y.dtype, device=call.y.device)
        )
        loose = any(value is t for t in call.loose)
        bias = place is None and isinstance(value, Tensor) and not loose and value.dim() == 1
        terms.append(Term(tensor if sign == 1 else sign * tensor, place, bias))
    return terms


def signs_of(call: Call) -> tuple[Any, Any]:
    """By what the operands of a sum are multiplied."""
    alpha = call.kwargs.get("alpha", 1)
    return {"sub": (1, -alpha), "subtract": (1, -alpha), "rsub": (-alpha, 1)}.get(call.name, (1, alpha))


def stands(call: Call, terms: Sequence[Term]) -> bool:
    """Whether a constant is added to a token at its own position, and is to give its share to the token."""
    if len(terms) != 2 or len(call.inputs) != 1 or not call.note.ledger.gives_back or call.origins[0].alone is None:
        return False
    constant = next((t for t in terms if t.place is None), None)
    return constant is not None and not constant.bias and constant.value.numel() > 1 and not constant.hides
