"""What a run noted: what a subject's first pass measured, and what all passes did, for the receipt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from whence.engine.flow import Flow
from whence.engine.log import Step
from whence.util.receipt import Later, Receipt, joined


@dataclass
class Measured:
    """What the first pass over a subject's own values measured: its scores, and the explained values themselves."""

    score: Tensor | None = None  # (rows, k)
    index: Tensor | None = None  # (rows, k, depth)
    logits: Tensor | None = None  # (rows, classes), of a classifier
    probability: Tensor | None = None  # (rows, k), of a classifier
    values: dict[str, Tensor] = field(default_factory=dict)  # explained values by key


@dataclass
class Record:
    """What the passes of one explanation did, counted over all of them; `summary` makes the receipt of it."""

    forwards: int = 0
    backwards: int = 0
    ops: Counter[tuple[str, str]] = field(default_factory=Counter)  # (family, rule)
    unruled: Counter[tuple[str, str]] = field(default_factory=Counter)
    unseen: Counter[tuple[str, str]] = field(default_factory=Counter)
    steps: list[Step] | None = None
    ruled: set[tuple[str, str]] = field(default_factory=set)  # (family, name) of the ops that got a rule
    modified: bool = False  # whether some rule was other than the derivative
    plain: bool = True  # no pass needed copies or had checkpoints
    by_layer: bool = False  # a pass in one piece would take more memory than it may
    opens: bool = False  # the model's own functions have no derivative here, and are run openly
    families: set[str] = field(default_factory=set)  # of the live ops
    chance: bool = False  # scores change with what the model draws, and that was warned of
    independent: bool | None = None  # whether a row has the same score wherever it stands, once that was tried
    max_rows: int | None = None  # that fit into one pass, once memory was found too small
    bytes_per_row: float = 0.0  # of one pass, counted over its live ops
    overall: dict[str, Any] = field(default_factory=dict)  # receipt entries about the run as a whole
    lost: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # what local path integrals missed
    per_row: dict[str, list[Later | list[Any]]] = field(default_factory=dict)  # receipt entries by row, part by part

    def note_per_row(self, **entries: Later | Sequence[Any]) -> None:
        """Add entries to the receipt that have one item per row."""
        for name, items in entries.items():
            self.per_row.setdefault(name, []).append(items if isinstance(items, Later) else list(items))

    def add(self, flow: Flow, rows: int) -> None:
        """Count what one pass did."""
        self.forwards += 1
        self.bytes_per_row = max(self.bytes_per_row, flow.log.bytes / max(rows, 1))
        self.ops.update(flow.log.ops)
        self.unruled.update(flow.log.unruled)
        self.unseen.update(flow.log.unseen)
        self.ruled |= flow.log.ruled
        self.families |= flow.log.families
        self.plain &= flow.log.plain
        if flow.log.quantised:
            self.overall["quantised"] = sorted(flow.log.quantised)
        self.modified |= flow.modifies
        if self.steps is not None and flow.log.steps is not None:
            self.steps.extend(flow.log.steps)

    def take_back(self, flow: Flow) -> None:
        """Forget a pass that has to be run again."""
        self.ops.subtract(flow.log.ops)
        self.unruled.subtract(flow.log.unruled)
        self.unseen.subtract(flow.log.unseen)
        if self.steps and flow.log.steps:
            del self.steps[-len(flow.log.steps) :]
        for counter in (self.ops, self.unruled, self.unseen):
            for key in [key for key, count in counter.items() if count <= 0]:
                del counter[key]

    def summary(self) -> Receipt:
        """The receipt: plain data, largest counts first."""
        unruled = self.unruled | Counter({op: len(times) for op, times in self.lost.items() if op not in self.unruled})
        return Receipt({
            "forward_passes": self.forwards,
            "backward_passes": self.backwards,
            **self.overall,
            **{name: joined(parts) for name, parts in self.per_row.items()},
            **({"per_row": list(self.per_row)} if self.per_row else {}),
            "ops": [{"op": op, "rule": rule, "count": n} for (op, rule), n in self.ops.most_common()],
            "unruled": [
                {"op": op, "path": path, "count": n}
                | ({"gap": sum(lost)} if (lost := self.lost.get((op, path))) else {})
                for (op, path), n in unruled.most_common()
            ],
            "unseen": [{"node": node, "path": path, "count": n} for (node, path), n in self.unseen.most_common()],
        })  # fmt: skip


def row_entries(numbers: Tensor) -> list[Any]:
    """(rows, k) as the receipt has it: a number for each row, or a list of them where there are several targets."""
    return (numbers[:, 0] if numbers.shape[1] == 1 else numbers).tolist()
