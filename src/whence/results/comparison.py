"""Several explanations of the same rows side by side, and the trace of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from whence.engine.log import Step
from whence.methods import methods
from whence.results.attribution import Attribution
from whence.util.files import Place, page_written
from whence.util.terminal import clean, safe, say


@dataclass(frozen=True, eq=False)
class Comparison(Mapping[str, Attribution]):
    """Attributions by method."""

    found: Mapping[str, Attribution]

    def __getitem__(self, method: str) -> Attribution:
        """By the method's name as it stands here, or an alias of it."""
        if method not in self.found and method in methods:
            method = methods.label(method)
        return self.found[method]

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def agreement(self) -> Tensor:
        """Rank correlation of each pair of methods, over the units of a row, averaged over rows.

        It is NaN for methods with other units than each other's, such as pixels and patches, and for those that rank
        nothing, because all of a row's values are the same; such rows take no part in the mean.
        """
        ranks = [_ranks(a) for a in self.found.values()]  # each (rows, units)
        none = torch.tensor(float("nan"), dtype=torch.float64, device="cpu")
        return torch.stack(
            [torch.stack([(a * b).sum(1).nanmean() if a.shape == b.shape else none for b in ranks]) for a in ranks]
        )

    def show(self) -> None:
        """Print the comparison."""
        say(self)

    def __str__(self) -> str:
        from whence.views.terminal import compared

        return compared(self)

    def __repr__(self) -> str:
        return clean(f"Comparison({', '.join(self.found)})")

    def to_html(self, path: Place = None, *, title: str = "Whence: methods compared") -> str:
        """A self-contained page, one section per method; written to a file, if there is a path."""
        from whence.views.html import compared, page

        return page_written(page(title, [compared(self)]), path)

    def save(self, path: str | PathLike[str]) -> None:
        """Write what the name's ending says: html, png, svg, pdf, json or csv."""
        from whence.views.export import write

        write(self, path)

    def _repr_html_(self) -> str:
        from whence.views.html import compared

        return compared(self)


def _ranks(a: Attribution) -> Tensor:
    """Ranks of each row's units, centred and of length 1; ties share their mean rank, padding takes no part.

    A row with nothing but ties is NaN.
    """
    parts = [a.values] if isinstance(a.values, Tensor) else list(_items(a.values))
    masks = (
        [a.real]
        if isinstance(a.values, Tensor)
        else list(_items(a.real))
        if a.real is not None
        else [None] * len(parts)
    )
    rows = []
    for row in range(len(a)):
        ranked = [_row_ranks(v[row], None if mask is None else mask[row]) for v, mask in zip(parts, masks, strict=True)]
        whole = torch.cat(ranked)
        rows.append(whole / whole.norm())
    return torch.stack(rows)


def _items(values: Any) -> Any:
    return values.values() if isinstance(values, Mapping) else values


def _row_ranks(values: Tensor, real: Tensor | None) -> Tensor:
    flat = values.flatten().double()
    keep = torch.ones_like(flat, dtype=torch.bool) if real is None or real.numel() != flat.numel() else real.flatten()
    _, inverse, counts = flat[keep].unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    rank = (ends - (counts.double() - 1) / 2)[inverse]
    found = torch.zeros_like(flat)
    found[keep] = rank - rank.mean()
    return found


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
            after = "\n\nThe rows were traced one by one, and their ops stand one row after the other: " + safe(
                f"{self.receipt['row_by_row']}."
            )
        if "relevance" not in self.receipt:
            return table(heads, rows) + after
        for row, step in zip(rows, self.steps, strict=True):
            row += [f"{sum(step.carried):+.4f}" if step.carried else "", _lost(step)]
        return table([*heads, "relevance", "lost"], rows) + after + "\n\n" + relevance(self.receipt)

    def plot(self, ax: Any = None, row: int = 0, target: int = 0) -> Any:
        """Relevance from the score to the input: what each layer carried, and what had been lost by then.

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
