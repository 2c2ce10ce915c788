"""A reference pass on tape: recorded op by op, then replayed against the input's pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import version_of
from whence.engine.trackers import Op, Tracker
from whence.errors import DivergedError
from whence.util.tree import swapped


@dataclass(slots=True)
class TapeEntry:
    """One live op of the reference pass; values are kept for ops whose rule may ask for them."""

    name: str
    path: str
    shapes: tuple[torch.Size, ...]
    values: tuple[Tensor, ...] = ()
    args: Any = ()
    kwargs: Any = None
    versions: tuple[int, ...] = ()
    loose: tuple[Tensor, ...] = ()  # constants among the arguments that are not parameters
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


@dataclass(eq=False)
class Tape(Tracker):
    """The ops of a reference pass in order. Replaying pops each entry, checks it and lets go of it."""

    copies: bool = False
    entries: deque[TapeEntry] = field(default_factory=deque)
    sorts: deque[Tensor] = field(default_factory=deque)  # permutations by which constants were sorted
    opened: deque[bool] = field(default_factory=deque)  # for each of the model's own functions: whether its ops follow
    replays: bool = False
    played: int = 0

    def rewind(self) -> None:
        """The recording is over; the next pass is replayed against it."""
        self.replays = True

    def open(self) -> tuple[int, ...] | None:
        """Where a function begins whose forward is to be run op by op; None if that failed in the reference."""
        if self.replays:
            return () if self.opened.popleft() else None
        self.opened.append(True)
        return len(self.entries), len(self.sorts), len(self.opened)

    def close(self, begun: tuple[int, ...]) -> None:
        """Take back what was recorded since: the function is one op."""
        held: tuple[deque[Any], ...] = (self.entries, self.sorts, self.opened)
        for recorded, length in zip(held, begun, strict=False):
            while len(recorded) > length:
                recorded.pop()
        if not self.replays:
            self.opened[-1] = False

    def before(self, op: Op) -> None:
        """Take this op down, or give it what the reference took down of it."""
        if self.replays:
            op.entry = self.play(op.name, op.path, op.live)
        else:
            self.record(op)

    def record(self, op: Op) -> None:
        """Take one op down, with its values if somebody will ask for them."""
        shapes = tuple(t.shape for t in op.live)
        if not (op.ruled or op.keeps_values):
            self.entries.append(TapeEntry(op.name, op.path, shapes, ruled=False))
            return
        copied = self.copies or op.writes
        kept = tuple(t.detach().clone() if copied else t.detach() for t in op.live)
        loose = tuple(t.clone() if copied else t for t in op.loose)  # the model may overwrite these, too
        swap = {id(t): value for t, value in zip((*op.live, *op.loose), (*kept, *loose), strict=True)}
        versions = tuple(map(version_of, (*kept, *loose)))
        args, kwargs = swapped(op.args, swap), swapped(op.kwargs, swap)
        entry = TapeEntry(op.name, op.path, shapes, kept, args, kwargs, versions, loose, ruled=op.ruled)
        self.entries.append(entry)

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

    def play(self, name: str, path: str, live: Sequence[Tensor]) -> TapeEntry:
        """The reference's entry for this op, which must be the same op on tensors of the same shapes."""
        self.played += 1
        if not self.entries:
            raise DivergedError(
                f"Op {self.played}: the input runs {name} in {path or 'the model itself'}, but the reference ran no "
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
