"""What LRP's rules share: how relevance is divided by an output and multiplied by an input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import Call
from whence.rules.ledger import Note
from whence.util.tree import flatten, swapped


@dataclass(frozen=True)
class Divide:
    """a / (b + ε·sign b), where 0 counts as positive; unsigned, a / (b + ε), and 0 where b is 0."""

    epsilon: float
    signed: bool = True

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        if self.signed and self.epsilon:
            return a / (b + b.new_tensor(self.epsilon).copysign(b.masked_fill(b == 0, 0.0)))
        quotients = a / (b + self.epsilon)
        return quotients if bool(b.all()) else quotients.masked_fill_(b == 0, 0.0)

    def lost(self, a: Tensor, s: Tensor, b: Tensor) -> Tensor:
        """What of a is not in s·b, entry by entry: the stabiliser's part, and all of it where s was made 0."""
        if self.signed and self.epsilon:
            return torch.where(b < 0, -s, s) * self.epsilon
        small = s * self.epsilon
        return small if bool(b.all()) else torch.where(b == 0, a, small)

    def rounding(self, a: Tensor, b: Tensor, size: Tensor, fine: float) -> tuple[Tensor, Tensor]:
        """What may be rounding in a·t/b, summed over the terms t of b, and Σ|a·t/b|, entry by entry.

        `size` is Σ|t|, `fine` the spacing of numbers: b is off by about fine·size, the quotient by the same part.
        """
        times = b.abs().add_(self.epsilon)
        torch.div(size, times, out=times)
        handed = a.abs().mul_(times)
        return times.mul_(fine).clamp_(max=1).mul_(handed), handed


NUDGED = Divide(1e-9, signed=False)  # how the authors of Transformer Attribution divide


class Named:
    """A rule with the name that traces show."""

    title = ""

    @property
    def __name__(self) -> str:
        return self.title


def first(m: Any) -> Tensor:
    """The relevance of an op's (first) output."""
    return m if isinstance(m, Tensor) else m[0]


def wide(t: Tensor) -> Tensor:
    """In single precision at least: half precision is too coarse for quotients and sums."""
    return t.float() if t.is_floating_point() and torch.finfo(t.dtype).bits < 32 else t


def quotient(divide: Divide, a: Tensor, b: Tensor) -> Tensor:
    if not b.is_complex():
        return divide(wide(a), wide(b)).to(b.dtype)
    parts = [torch.view_as_real(t.resolve_conj()).contiguous() for t in (a.to(b.dtype), b)]
    return torch.view_as_complex(divide(*parts))


def write_off(note: Note, divide: Divide, r: Tensor, s: Tensor, y: Tensor) -> None:
    """What dividing by y lost: all of it where y is 0, and what keeps the quotient small."""
    if y.is_complex():
        r, s, y = (torch.view_as_real(t.to(y.dtype).resolve_conj()) for t in (r, s, y))
    note.lose("epsilon", divide.lost(r, s, y))


def note_rounding(call: Call, divide: Divide, r: Tensor) -> None:
    """What may be rounding in what an op hands on that sums products of its inputs."""
    if call.note.ledger.rounds and not has_complex(call):
        call.note.round(*divide.rounding(wide(r), wide(call.y), _size(call), torch.finfo(call.y.dtype).eps))


def _size(call: Call) -> Tensor:
    """How large the terms of an op's sums are together; of a matrix product about, at the cost of two norms."""
    if call.name in ("matmul", "bmm", "mm") and len(call.inputs) == 2 and min(x.dim() for x in call.inputs) > 1:
        a, b = (wide(t.detach()) for t in call.args[:2])
        return 0.64 * a.norm(dim=-1, keepdim=True) * b.norm(dim=-2, keepdim=True)
    return wide(call.value_at([x.abs() for x in call.x]))


def has_complex(call: Call) -> bool:
    """Whether an op takes or gives complex numbers, of which each part has relevance of its own."""
    return call.y.is_complex() or any(x.is_complex() for x in call.inputs)


def times_input(call: Call, given: Sequence[Tensor | None]) -> list[Tensor | None]:
    """x ⊙ what came back, of complex numbers each part by itself; an infinity, such as a masked score, takes none."""
    parts = [None if g is None else _times(x, g) for x, g in zip(call.x, given, strict=True)]
    return [
        p if p is None or p.is_complex() or bool(p.sum().isfinite()) else p.masked_fill(x.isinf(), 0.0)
        for x, p in zip(call.x, parts, strict=True)
    ]


def _times(a: Tensor, b: Tensor) -> Tensor:
    if not a.is_complex():
        return a * b
    return torch.view_as_complex(torch.view_as_real(a.resolve_conj()) * torch.view_as_real(b.resolve_conj()))


def derivative_of(call: Call, m: Any, more: int = 0) -> Sequence[Tensor | None]:
    """The op's own derivative; where further targets will ask for it and there is room, its graph serves them all.

    `more`: how many numbers the graph holds beside the op's inputs and outputs.
    """
    size = more + sum(t.numel() for t in (*call.inputs, *call.outputs))
    memo = call.note.memo(size * call.inputs[0].element_size())
    if memo is None or not isinstance(m, Tensor):
        return call.derivative_at(call.x, m)
    if not memo:
        inputs = [x.requires_grad_() for x in call.x]
        swap = {id(x): new for x, new in zip(call.inputs, inputs, strict=True)}
        outputs: list[Tensor] = []
        with torch.enable_grad():
            flatten(call.function(*swapped(call.args, swap), **swapped(call.kwargs, swap)), outputs)
        memo["graph"] = outputs, inputs
    (y,), inputs = memo["graph"]
    call.check()
    return torch.autograd.grad(y, inputs, m, retain_graph=True, allow_unused=True)


def by_input(shapes: Sequence[torch.Size], parts: Sequence[tuple[int | None, Tensor | None]]) -> list[Tensor | None]:
    """One tensor per live input, of its shape."""
    relevance: list[Tensor | None] = [None] * len(shapes)
    for place, part in parts:
        if place is not None and part is not None:
            fitting, before = part.sum_to_size(shapes[place]), relevance[place]
            relevance[place] = fitting if before is None else before + fitting
    return relevance
