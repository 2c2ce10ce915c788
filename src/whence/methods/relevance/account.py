"""The receipt of a relevance pass: what came from where to where, and what was lost on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.engine.plan import Account
from whence.errors import warn
from whence.rules.ledger import Ledger
from whence.subject import Subject
from whence.subject.masks import real_units
from whence.subject.passes import Pass
from whence.util.keys import input_of

_MOST = 8  # ops that are named, those that lost most
_LEAK = 1e-4  # of what started: more than this may not go without a word


def account(
    subject: Subject, ledger: Account | None, done: Pass, relevance: Mapping[str, Tensor], start: Tensor | None = None
) -> dict[str, list[Any]]:
    """The receipt of each row: what started, what arrived, what was lost by kind and where, what passed each module.

    At every boundary: carried + lost by the ops after it + `beside` = start. `cut` says that by the graph nothing goes
    around it, as with a layer of a residual stream; `beside` must be 0 there, and elsewhere it is what goes around.
    """
    assert isinstance(ledger, Ledger)
    shape = done.score.shape
    begun = torch.ones(shape, dtype=torch.float64, device="cpu") if start is None else start.double().cpu()
    arrived, padding = _arrived(subject, relevance, shape)
    entries = sorted(ledger.entries, key=lambda entry: entry.number)
    losses = [(entry, kind, amounts) for entry in entries for kind, amounts in entry.lost.items()]
    lost = _table([amounts for _, _, amounts in losses], shape)  # (losses, rows, k)
    halved = _table([entry.halved for entry in entries if entry.halved], shape).sum(0)
    kinds = list(dict.fromkeys(kind for _, kind, _ in losses))
    of_kind = torch.tensor([kinds.index(kind) for _, kind, _ in losses], dtype=torch.long, device="cpu")
    by_kind = torch.zeros(len(kinds), *shape, dtype=torch.float64, device="cpu").index_add(0, of_kind, lost)
    rest = begun - arrived - padding - by_kind.sum(0)
    carried = _table([b.carried for b in ledger.boundaries], shape)
    after = _after(ledger, losses, lost, of_kind, len(kinds))  # (boundaries, kinds, rows, k)
    beside = begun - carried - after.sum(1)
    cuts = ledger.separates()

    def line(row: int, k: int) -> dict[str, Any]:
        amounts = lost[:, row, k]
        most = amounts.abs().argsort(descending=True, stable=True)[:_MOST].tolist()
        layers = zip(carried[:, row, k].tolist(), after[:, :, row, k].tolist(), beside[:, row, k].tolist(), strict=True)
        return {
            "start": float(begun[row, k]),
            "end": float(arrived[row, k]),
            "lost": {
                **dict(zip(kinds, by_kind[:, row, k].tolist(), strict=True)),
                **({"padding": float(padding[row, k])} if float(padding[row, k]) else {}),
            },
            "unaccounted": float(rest[row, k]),
            "halved": float(halved[row, k]),
            "layers": [
                {"module": b.path, "call": b.call, "cut": cut, "carried": c, "beside": r,
                 "lost": {kind: amount for kind, amount in zip(kinds, a, strict=True) if amount}}
                for b, cut, (c, a, r) in zip(ledger.boundaries, cuts, layers, strict=True)
            ],
            "where": [
                {"module": losses[i][0].path, "op": losses[i][0].family, "kind": losses[i][1],
                 "amount": float(amounts[i])}
                for i in most if float(amounts[i])
            ],
        }  # fmt: skip

    rows, targets = shape
    lines = [[line(row, k) for k in range(targets)] for row in range(rows)]
    for key in sorted(ledger.unmet):
        warn(f"{subject.method}: composite={{{key!r}: ...}} met no op with weights; whence.trace shows them all.")
    if not ledger.multiplies:
        fine = max(_LEAK, 32 * torch.finfo(done.score.dtype).eps)
        _warn_of_a_leak(subject, begun, rest, torch.maximum(arrived.abs(), by_kind.abs().sum(0)), fine)
    return {"relevance": [each[0] if targets == 1 else each for each in lines]}


def _arrived(subject: Subject, relevance: Mapping[str, Tensor], shape: torch.Size) -> tuple[Tensor, Tensor]:
    """What came to the inputs, (rows, targets), and what came to padding, whose values are 0."""
    arrived, padding = torch.zeros(2, *shape, dtype=torch.float64, device="cpu")
    for key, value in relevance.items():
        whole = value.detach().double()
        ids = subject.roles.get(input_of(key)) == "ids"
        real = real_units(subject, key, value[:, 0].shape) if ids else None
        if real is not None and not bool(real.all()):
            hidden = whole.masked_fill(real.view(len(real), 1, -1, *[1] * (value.dim() - 3)).to(whole.device), 0)
            padding = padding + hidden.reshape(*shape, -1).sum(2).cpu()
        arrived = arrived + whole.reshape(*shape, -1).sum(2).cpu()
    return arrived - padding, padding


def _after(ledger: Ledger, losses: Sequence[Any], lost: Tensor, of_kind: Tensor, kinds: int) -> Tensor:
    """What the ops after each boundary lost, by kind."""
    _, rows, targets = lost.shape
    spread = torch.zeros(len(losses), kinds, rows, targets, dtype=torch.float64, device="cpu")
    spread[torch.arange(len(losses), device="cpu"), of_kind] = lost
    behind = torch.cat([spread.flip(0).cumsum(0).flip(0), spread.new_zeros(1, kinds, rows, targets)])
    numbers = torch.tensor([entry.number for entry, _, _ in losses], dtype=torch.long, device="cpu")
    boundaries = torch.tensor([b.number for b in ledger.boundaries], dtype=torch.long, device="cpu")
    return behind[torch.searchsorted(numbers, boundaries, right=True)]


def _table(columns: Sequence[Sequence[Tensor | None]], shape: torch.Size) -> Tensor:
    """(columns, rows, targets); what was not met is 0."""
    rows, targets = shape
    zero = torch.zeros(rows, dtype=torch.float64, device="cpu")
    filled = [
        torch.stack([zero if k >= len(c) or (amount := c[k]) is None else amount.cpu() for k in range(targets)], 1)
        for c in columns
    ]
    return torch.stack(filled) if filled else torch.zeros(0, rows, targets, dtype=torch.float64, device="cpu")


def _warn_of_a_leak(subject: Subject, begun: Tensor, rest: Tensor, size: Tensor, fine: float) -> None:
    """Relevance that is neither at the input nor among the losses."""
    share = rest.abs() / torch.maximum(begun.abs(), size).clamp(min=1e-30)
    if bool((share > fine).any()):
        rows = (share.amax(1) > fine).nonzero().flatten().tolist()
        why = "it went through ops that the engine does not see (receipt['unseen'])"
        why = why if subject.record.unseen else "some rule gave another sum than it got, or rounding did"
        warn(
            f"{subject.method}: up to {{percent}} % of the relevance of {{rows}} cannot be accounted for: {why}. "
            "whence.trace shows what each op carried.",
            [subject.row_numbers[row] for row in rows],
            percent=100 * float(share.max()),
        )
