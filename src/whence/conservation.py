"""The receipt of a relevance pass: what came from where to where, and what was lost on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.engine.ledger import Ledger
from whence.passes import Pass
from whence.subject import Subject

_MOST = 8  # ops that are named, those that lost most


def account(
    subject: Subject, ledger: Ledger | None, done: Pass, found: Mapping[str, Tensor], start: Tensor | None = None
) -> None:
    """Say for each row what started, what arrived, what was lost by kind and where, and what passed each module.

    At every boundary: carried + lost by the ops after it + what passed beside it = start. At a cut, such as a layer of
    the residual stream, nothing passes beside.
    """
    assert ledger is not None
    shape = done.score.shape
    begun = torch.ones(shape, dtype=torch.float64) if start is None else start.double()
    arrived = sum(value.detach().double().flatten(2).sum(2) for value in found.values())
    entries = sorted(ledger.entries, key=lambda entry: entry.number)
    losses = [(entry, kind, amounts) for entry in entries for kind, amounts in entry.lost.items()]
    lost = _table([amounts for _, _, amounts in losses], shape)  # (losses, rows, k)
    numbers = torch.tensor([entry.number for entry, _, _ in losses])
    carried = _table([b.carried for b in ledger.boundaries], shape)
    after = torch.cat([lost.flip(0).cumsum(0).flip(0), lost.new_zeros(1, *shape)])
    after = after[torch.searchsorted(numbers, torch.tensor([b.number for b in ledger.boundaries]), right=True)]
    beside = begun - carried - after
    kinds = list(dict.fromkeys(kind for _, kind, _ in losses))
    by_kind = {
        kind: sum((part for part, (_, k, _) in zip(lost, losses, strict=True) if k == kind), lost.new_zeros(shape))
        for kind in kinds
    }

    def line(row: int, k: int) -> dict[str, Any]:
        columns = [t[:, row, k].tolist() for t in (carried, after, beside)]
        amounts = lost[:, row, k]
        most = amounts.abs().argsort(descending=True, stable=True)[:_MOST].tolist()
        return {
            "start": float(begun[row, k]),
            "end": float(arrived[row, k]),  # type: ignore[index]
            "lost": {kind: float(total[row, k]) for kind, total in by_kind.items()},
            "layers": [
                {"module": b.path, "call": b.call, "carried": c, "lost": a, "beside": r}
                for b, c, a, r in zip(ledger.boundaries, *columns, strict=True)
            ],
            "where": [
                {
                    "module": losses[i][0].path,
                    "op": losses[i][0].family,
                    "kind": losses[i][1],
                    "amount": float(amounts[i]),
                }
                for i in most
                if float(amounts[i])
            ],
        }

    rows, targets = shape
    lines = [[line(row, k) for k in range(targets)] for row in range(rows)]
    subject.notes.say(relevance=[each[0] if targets == 1 else each for each in lines])


def _table(columns: Sequence[Sequence[Tensor | None]], shape: torch.Size) -> Tensor:
    """(columns, rows, targets); what was not met is 0."""
    rows, targets = shape
    zero = torch.zeros(rows, dtype=torch.float64)
    filled = [
        torch.stack([zero if k >= len(c) or c[k] is None else c[k].cpu() for k in range(targets)], 1)  # type: ignore[union-attr]
        for c in columns
    ]
    return torch.stack(filled) if filled else torch.zeros(0, rows, targets, dtype=torch.float64)
