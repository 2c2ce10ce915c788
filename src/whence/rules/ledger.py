"""The account of one relevance pass: what each op lost and why, and what passed every module's boundary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from whence.engine.captures import Site
from whence.engine.liveness import born_in_a_pass
from whence.engine.log import Step
from whence.engine.trackers import Birth, Op, Tracker
from whence.engine.trackers.provenance import WEIGHTED, Life, origin_of
from whence.engine.trackers.rows import RowAxis, row_axis_of

_ROOM = 1 << 28  # bytes that rules may keep from one target to the next


class RowsLost(Exception):
    """Sums per row are needed of a tensor whose row axis is not known."""


@dataclass(eq=False, slots=True)
class LedgerLine:
    """What one op lost, by kind and target: each (rows,)."""

    number: int
    family: str
    path: str
    lost: dict[str, list[Tensor | None]] = field(default_factory=dict)
    halved: list[Tensor] = field(default_factory=list)  # what a product shared between two activations
    rounding: list[Tensor | None] = field(
        default_factory=list
    )  # (2, rows): what of it may be rounding, and of how much


@dataclass(eq=False, slots=True)
class Boundary:
    """What passed a module's output, by target: each (rows,)."""

    path: str
    call: int
    number: int  # of the last op before it
    life: Life
    carried: list[Tensor | None] = field(default_factory=list)


class Ledger:
    """The account: the pass reports boundaries, rules report losses."""

    def __init__(self, rows: int, multiplies: bool = False, only: Any = None) -> None:
        self.rows, self.multiplies, self.only = rows, multiplies, only
        self.unmet: set[str] = set()  # modules that a composite names and that did not run
        self.rounds = False  # whether rules say how much of what they hand on may be rounding
        self.gives_back = False  # what is added to a token at its own position gives its share to the token
        self.targets = 1  # how many will be propagated
        self.begin()

    def begin(self) -> None:
        self.entries: list[LedgerLine] = []
        self.boundaries: list[Boundary] = []
        self.by_layer = False  # layers are run again, and what comes to a value may come in parts
        self._known: dict[tuple[str, int], Boundary] = {}
        self.lives: list[Life] = []  # of all live tensors
        self.ops = 0  # live ops, views included
        self.deepest = 0  # how many ops with weights came before the last one
        self.target = 0  # the one that is propagated now
        self.room = _ROOM
        self.on = True

    def tracker(self) -> Tracker:
        """Follows the ops of one pass."""
        return Bookkeeping(self)

    def trace(self, step: Step, outputs: Sequence[Tensor], note: Note | None) -> None:
        """Have a step of the trace say what it carried and lost."""
        tensor = next(t for t in outputs if t.requires_grad)
        kept = tensor.detach() if self.multiplies else None

        def carried(r: Tensor | None) -> None:
            if self.on:
                step.carried.append(0.0 if r is None else float((r if kept is None else r * kept).sum().real))

        tensor.register_hook(carried)
        if note is not None:
            step.lost.append(note.entry)

    # ---- a listener of the pass ----

    def value(self, site: Site, tensor: Tensor) -> None:
        if site.kind != "output" or not born_in_a_pass(tensor) or (self.only is not None and not self.only(site.path)):
            return
        row_axis = row_axis_of(tensor)
        if row_axis is None and self.rows > 1:
            return  # its row axis is not known
        there = self._known.get((site.path, site.call)) if self.by_layer else None
        if there is None:
            there = Boundary(site.path, site.call, self.ops, origin_of(tensor).life)
            self._known[site.path, site.call] = there
            self.boundaries.append(there)
        kept = tensor.detach() if self.multiplies else None

        def carried(r: Tensor | None) -> None:
            if self.on and r is not None:
                there.carried += [None] * (self.target + 1 - len(there.carried))
                came, before = self.sums(r if kept is None else r * kept, row_axis), there.carried[self.target]
                there.carried[self.target] = came if before is None or not self.by_layer else before + came

        tensor.register_hook(carried)

    def fused(self, site: Site, modalities: Any, depth: int, numbers: Any) -> None:
        """A fused attention has no boundary inside."""

    def sums(self, r: Tensor, row_axis: RowAxis | None, of: Any = "") -> Tensor:
        """Each row's sum, in double precision; of complex numbers each part has relevance of its own."""
        r = r.real + r.imag if r.is_complex() else r
        if self.rows == 1:
            r = r.sum(-1) if r.dim() > 1 and r.dtype != torch.float64 else r  # else all of it is copied first
            return r.sum(dtype=torch.float64).view(1)
        if row_axis is None:
            raise RowsLost(f"{of} does not say which of its entries belong to which row")
        return row_axis.sums(r).double()


def separates(boundaries: Sequence[Boundary], lives: Sequence[Life], ops: int) -> list[bool]:
    """Of each boundary: whether all that was made before it and is taken after it goes through it."""
    alive = [0] * (ops + 2)  # how many values are held over, after each op
    for life in lives:
        alive[life.born] += 1
        alive[life.last] -= 1
    alive = list(accumulate(alive))
    return [alive[b.number] == (b.life.born <= b.number < b.life.last) for b in boundaries]


class Bookkeeping(Tracker):
    """Gives each op with a call its page in the ledger, and notes how long values live."""

    replays = False  # layers are run again, of which all is known but what they lose

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def place(self) -> int:
        self.ledger.by_layer = True
        return self.ledger.ops

    def again(self, place: int) -> None:
        self.ledger.ops, self.ledger.room, self.replays = place, _ROOM, True

    def begin(self, tensor: Tensor, birth: Birth) -> None:
        self.ledger.lives.append(origin_of(tensor).life)

    def before(self, op: Op) -> None:
        self.ledger.ops += 1

    def describe(self, op: Op) -> None:
        call, ledger = op.call, self.ledger
        if call is None:
            return
        depth = max(o.depth for o in call.origins)
        ledger.deepest = max(ledger.deepest, depth if op.family in WEIGHTED else 0)
        row_axes = call.row_axes or (None,) * len(op.live)
        call.note = Note(ledger, LedgerLine(ledger.ops, op.family, op.path), depth, row_axes)

    def follow(self, op: Op) -> None:
        note = None if op.call is None else op.call.note
        if op.step is not None:
            self.ledger.trace(op.step, op.outputs, note)
        if op.family != "view" and not self.replays:  # a view lives as long as what it is a view of
            lives = [origin_of(t).life for t in op.outputs]
            self.ledger.lives += lives if len(lives) == 1 else {id(life): life for life in lives}.values()
        if op.call is not None and note is not None and op.outputs:
            note.row_axis, note.life = op.call.row_axis, origin_of(op.outputs[0]).life


@dataclass(eq=False, slots=True)
class Note:
    """One op's page in the ledger. Rules keep it instead of the op."""

    ledger: Ledger
    entry: LedgerLine
    depth: int
    row_axes: tuple[RowAxis | None, ...]  # of the rows in the live inputs
    row_axis: RowAxis | None = None  # and in the output
    life: Any = None  # of the output
    kept: dict[str, Any] | None = None  # what a rule made once for all targets

    def memo(self, size: int) -> dict[str, Any] | None:
        """Where a rule may keep so many bytes for the targets to come, if there are any and there is room."""
        if self.kept is None and self.ledger.targets > 1 and self.ledger.room >= size:
            self.ledger.room -= size
            self.kept = {}
        return self.kept

    @property
    def title(self) -> str:
        return f"{self.entry.family!r} in {self.entry.path or 'the model itself'}"

    def sums(self, r: Tensor) -> Tensor:
        """Per row, of a tensor like the output."""
        return self.ledger.sums(r, self.row_axis, self.title)

    def spread(self, per_row: Tensor, like: Tensor) -> Tensor:
        if self.ledger.rows == 1 or self.row_axis is None:
            return per_row.to(like.dtype)
        return self.row_axis.spread(per_row.to(like.dtype), like)

    def halve(self, amount: Tensor) -> None:
        """Take down what is shared between two activations; nothing of it is lost."""
        self._open()
        self.entry.halved.append(self.sums(amount))

    def lose(self, kind: str, amount: Tensor) -> None:
        """Take down a loss, entry by entry of the output."""
        self.lose_rows(kind, self.sums(amount))

    def lose_rows(self, kind: str, amount: Tensor) -> None:
        """Take down a loss per row."""
        self._open()
        self._add(self.entry.lost.setdefault(kind, []), amount)

    def round(self, rounding: Tensor, size: Tensor) -> None:
        """Take down what may be rounding, and the magnitudes of all that is handed on, entry by entry of the output."""
        self._open()
        self._add(self.entry.rounding, torch.stack([self.sums(rounding), self.sums(size)]))

    def _add(self, told: list[Tensor | None], amount: Tensor) -> None:
        while len(told) <= self.ledger.target:
            told.append(None)
        before = told[self.ledger.target]
        told[self.ledger.target] = amount if before is None else before + amount

    def _open(self) -> None:
        if not (self.entry.lost or self.entry.halved or self.entry.rounding):
            self.ledger.entries.append(self.entry)

    def lose_rest(self, kind: str, r: Tensor, given: Sequence[Tensor | None]) -> None:
        """Take down what came and was not handed on."""
        rest = self.sums(r)
        for part, row_axis in zip(given, self.row_axes, strict=True):
            rest = rest - (0 if part is None else self.ledger.sums(part, row_axis, self.title))
        self.lose_rows(kind, rest)
