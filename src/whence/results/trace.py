"""The trace of one explanation: every op that it met, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from whence.engine.log import Step
from whence.util.terminal import safe


@dataclass(frozen=True)
class Trace:
    """The ops of an explanation in the order in which they ran."""

    method: str
    steps: tuple[Step, ...]
    receipt: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __str__(self) -> str:
        from whence.views.tables import table
        from whence.views.terminal import relevance

        heads = ["op", "family", "module", "rule", "shape"]
        rows = [[s.op, s.family, s.path, s.rule, "×".join(map(str, s.shape))] for s in self.steps]
        after = ""
        if "row_by_row" in self.receipt:
            after = "\n\nThe rows were traced one by one, and their ops are listed row after row: " + safe(
                f"{self.receipt['row_by_row']}."
            )
        if "relevance" not in self.receipt:
            return table(heads, rows) + after
        for row, step in zip(rows, self.steps, strict=True):
            row += [f"{sum(step.carried):+.4f}" if step.carried else "", _lost(step)]
        return table([*heads, "relevance", "lost"], rows) + after + "\n\n" + relevance(self.receipt)

    def plot(self, ax: Any = None, row: int = 0, target: int = 0) -> Any:
        """Relevance from the score to the input: what each layer carried, and what was lost up to there.

        `target` is a number among several targets.
        """
        from whence.views.relevance import draw

        return draw(self.receipt, ax, row, target)

    def __repr__(self) -> str:
        return f"Trace({self.method}, {len(self.steps)} ops)"


def _lost(step: Step) -> str:
    """What an op lost by kind, all rows and targets together."""
    sums = {
        kind: sum(float(a.sum()) for a in amounts if a is not None)
        for entry in step.lost
        for kind, amounts in entry.lost.items()
    }
    return ", ".join(f"{kind} {amount:+.4f}" for kind, amount in sums.items() if abs(amount) >= 5e-5)
