"""Record / replay of a reference pass, and the rule that any op can take between its reference and its input."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.engine.call import Call, Gradients, swapped, version_of
from whence.engine.ops import GROUP
from whence.errors import DivergedError


@dataclass(slots=True)
class Entry:
    """One live op of the reference pass; values are kept for ops whose rule may ask for them."""

    name: str
    path: str
    shapes: tuple[torch.Size, ...]
    values: tuple[Tensor, ...] = ()
    args: Any = ()
    kwargs: Any = None
    versions: tuple[int, ...] = ()
    loose: tuple[Tensor, ...] = ()  # constants among the arguments that are no parameters
    result: Tensor | None = None  # for ops that make parts
    born: int = 0  # the result's version
    ruled: bool = True  # a rule will ask for the values

    def empty(self) -> None:
        self.values, self.args, self.kwargs, self.versions = (), (), None, ()
        self.loose, self.result = (), None


class RowsNeeded(Exception):
    """A reference of one row does not broadcast here: it must be recorded again, expanded to all rows."""


class CopiesNeeded(Exception):
    """A recorded value was overwritten in place: it must be recorded again, with copies."""


class Tape:
    """The ops of a reference pass in order. Replaying pops each entry, checks it and lets go of it."""

    def __init__(self, copies: bool = False) -> None:
        self.copies = copies
        self.entries: deque[Entry] = deque()
        self.sorts: deque[Tensor] = deque()  # permutations by which constants were sorted
        self.played = 0

    def record(
        self, name: str, path: str, live: Sequence[Tensor], args: Any, kwargs: Any, *, values: bool, writes: bool,
        loose: Sequence[Tensor] = (),
    ) -> None:  # fmt: skip
        """Take one op down; `loose` are its constants that the model may overwrite."""
        shapes = tuple(t.shape for t in live)
        if not values:
            self.entries.append(Entry(name, path, shapes))
            return
        copied = self.copies or writes
        kept = tuple(t.detach().clone() if copied else t.detach() for t in live)
        beside = tuple(t.clone() if copied else t for t in loose)
        swap = {id(t): value for t, value in zip((*live, *loose), (*kept, *beside), strict=True)}
        versions = tuple(map(version_of, (*kept, *beside)))
        args, kwargs = swapped(args, swap), swapped(kwargs, swap)
        self.entries.append(Entry(name, path, shapes, kept, args, kwargs, versions, beside))

    def record_result(self, result: Tensor) -> None:
        """Keep what the last op gave, too."""
        entry = self.entries[-1]
        entry.result = result.detach().clone() if self.copies else result.detach()
        entry.born = entry.result._version

    def trim(self, asked: Collection[int]) -> None:
        """Let go of values that no rule and none of these ops will ask for."""
        for number, entry in enumerate(self.entries):
            if not entry.ruled and number not in asked:
                entry.empty()

    def play(self, name: str, path: str, live: Sequence[Tensor]) -> Entry:
        """The reference's entry for this op, which must be the same op on tensors of the same shapes."""
        self.played += 1
        if not self.entries:
            raise DivergedError(
                f"Op {self.played}: the input runs {name} in {path or 'the model itself'}, and the reference ran no "
                f"more ops.\n{WAY_OUT}"
            )
        entry = self.entries.popleft()
        if entry.name != name or len(entry.shapes) != len(live):
            raise DivergedError(
                f"Op {self.played}: the reference ran {entry.name} (in {entry.path or 'the model itself'}, "
                f"{len(entry.shapes)} live inputs), the input runs {name} (in {path or 'the model itself'}, "
                f"{len(live)} live inputs).\n"
                f"{WAY_OUT}"
            )
        for shape, tensor in zip(entry.shapes, live, strict=True):
            if shape != tensor.shape and not _broadcasts(shape, tensor.shape):
                raise RowsNeeded(f"op {self.played}, {name}: {tuple(shape)} against {tuple(tensor.shape)}")
        changed = entry.result is not None and entry.result._version != entry.born
        if changed or tuple(map(version_of, (*entry.values, *entry.loose))) != entry.versions:
            raise CopiesNeeded
        return entry

    def finish(self) -> None:
        """Every entry must have been used."""
        if self.entries:
            first = self.entries[0]
            raise DivergedError(
                f"The reference ran {len(self.entries)} more ops than the input, the first of them {first.name} "
                f"(in {first.path or 'the model itself'}).\n{WAY_OUT}"
            )


WAY_OUT = (
    "  The model takes another branch for the baseline than for the input: choose a baseline nearer to the input, or a "
    "method without a reference."
)


def _broadcasts(one: torch.Size, many: torch.Size) -> bool:
    return len(one) == len(many) and all(a in (1, b) for a, b in zip(one, many, strict=True))


_POINTS = {"norm": 64, "max": 256}  # maxima and order statistics have kinks, norms a steep middle
_DEFAULT_POINTS = 32


@functools.cache
def _quadrature(points: int) -> list[tuple[float, float]]:
    """Gauss–Legendre nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return [(float(a), float(w)) for a, w in zip((nodes + 1) / 2, weights / 2, strict=True)]


def path_integral(call: Call, m: Any) -> Gradients:
    """Rule: the op's own derivative averaged over the straight line from its reference to its input.

    m·Δy = Σ_j ∫ m·∂y/∂x_j dα · Δx_j, so nothing is lost but the quadrature's error. The number of points depends on the
    kind of op alone, never on the batch: a row gets the same alone and among others.
    """
    found = path_average(call, m, _POINTS.get(GROUP.get(call.family, ""), _DEFAULT_POINTS))
    if call.lose is not None:
        call.lose(_unshared(call, m, found))
    return found


path_integral.generic = True  # type: ignore[attr-defined]


def _unshared(call: Call, m: Any, found: Sequence[Tensor]) -> float:
    """|m·Δy − Σ m_x·Δx| over all entries: what the quadrature missed of one output's rise."""
    m = m if isinstance(m, Tensor) else m[0]
    if m is None or any(t.is_complex() for t in (m, *found)):
        return 0.0
    rise = (m * torch.nan_to_num(call.y - call.reference_y)).double().sum()
    steps = zip(found, call.x, call.reference_x, strict=True)
    return abs(float(rise - sum((g * torch.nan_to_num(x - r)).double().sum() for g, x, r in steps)))


def path_average(call: Call, m: Any, points: int) -> list[Tensor]:
    """What the op's derivative makes of m, averaged over so many points between its reference and its input."""
    here, before = call.x, call.reference_x
    total = [torch.zeros_like(x) for x in here]
    for node, weight in _quadrature(points):
        point = [torch.where(x == b, x, b + node * (x - b)) for x, b in zip(here, before, strict=True)]  # -inf stays
        for sum_, g in zip(total, call.derivative_at(point, m), strict=True):
            if g is not None:
                sum_ += weight * g
    return total
