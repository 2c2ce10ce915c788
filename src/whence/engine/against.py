"""One pass against another: what is taken down of a reference op by op, and what the input's ops get of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from whence.engine.call import Call
from whence.engine.inplace import out_of_place
from whence.engine.tape import Entry, Tape
from whence.rules.reveal_cancel import Pair, Parts, attach, parts_of, revealed


class Against:
    """A tape that is recorded, replayed, or neither; and the parts that its ops have to give."""

    def __init__(self, record: Tape | None, replay: Tape | None, parts: Parts | None) -> None:
        self._record, self._replay, self._parts = record, replay, parts

    def take(
        self, name: str, family: str, path: str, args: Any, kwargs: Any, live: list[Tensor], loose: list[Tensor], *,
        ruled: bool, writes: bool,
    ) -> Entry | None:  # fmt: skip
        """Take this op down, or give what the reference took down of it."""
        if self._record is not None:
            values = ruled or (self._parts is not None and bool(self._parts.kind(family)))
            self._record.record(name, path, live, args, kwargs, values=values, writes=writes, loose=loose)
            self._record.entries[-1].ruled = ruled
            if self._parts is not None:
                self._parts.note(family, live)
        return None if self._replay is None else self._replay.play(name, path, live)

    def asked(self) -> bool:
        """Whether the op that is being replayed has to give positive and negative parts."""
        parts, replay = self._parts, self._replay
        return parts is not None and replay is not None and replay.played - 1 in parts.asked

    def pairs(self, live: Sequence[Tensor], entry: Entry | None) -> list[Pair]:
        """The parts of its inputs, if it has."""
        if entry is None or not self.asked():
            return []
        return [parts_of(t, before) for t, before in zip(live, entry.values, strict=True)]

    def reveals(self, family: str, rule: Any, pairs: Sequence[Pair]) -> bool:
        """Whether it goes by RevealCancel."""
        return bool(pairs) and self._parts is not None and self._parts.reveals(family, rule, pairs)

    def born(self, result: Any) -> None:
        """What the recorded op gave."""
        if self._record is not None and self._parts is not None:
            self._parts.born(result, self._record)


def reveal(call: Call, x: Tensor, pair: Pair, target: Tensor | None) -> Tensor:
    """An elementwise op by RevealCancel, in place or not."""
    if target is not None:
        call.function = out_of_place(call.function)
    y, parts = revealed(call, x, pair)
    result = y if target is None else target.copy_(y)
    attach(result, parts)
    return result
