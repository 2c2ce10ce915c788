"""The receipt of a relevance pass: what came from where to where, and what was lost on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from whence.engine.plan import Account
from whence.errors import warn
from whence.rules.ledger import Ledger, separates
from whence.subject import Subject
from whence.subject.masks import real_units
from whence.subject.passes import Pass
from whence.util.keys import input_of
from whence.util.receipt import Later

_MOST = 8  # ops that are named, those that lost most
_LEAK = 1e-4  # of what started: more than this may not go without a word


def account(
    subject: Subject, ledger: Account | None, done: Pass, relevance: Mapping[str, Tensor], start: Tensor | None = None
) -> dict[str, Later]:
    """The receipt of each row: what started, what arrived, what was lost by kind and where, what passed each module.

    At every boundary: carried + lost by the ops after it + `beside` = start. `cut` says that by the graph nothing goes
    around it, as with a layer of a residual stream; `beside` must be 0 there, and elsewhere it is what goes around.
    """
    assert isinstance(ledger, Ledger)
    shape = done.score.shape
    begun = torch.ones(shape, dtype=torch.float64, device="cpu") if start is None else start.double().cpu().clone()
    found = _Account(ledger, begun, *_arrived(subject, relevance, shape))
    for key in sorted(ledger.unmet):
        warn(f"{subject.method}: composite={{{key!r}: ...}} met no op with weights; whence.trace shows them all.")
    if not ledger.multiplies:
        fine = max(_LEAK, 32 * torch.finfo(done.score.dtype).eps)
        _warn_of_a_leak(subject, found, fine)
    return {"relevance": Later.of(found.lines, shape[0])}


class _Account:
    """The numbers of all rows as tables, (…, rows, targets); lines are made of them for whoever reads the receipt."""

    def __init__(self, ledger: Ledger, begun: Tensor, arrived: Tensor, padding: Tensor) -> None:
        self.begun, self.arrived, self.padding = begun, arrived, padding
        self.entries = sorted(ledger.entries, key=lambda entry: entry.number)
        self.boundaries, self.cuts = ledger.boundaries, partial(separates, ledger.boundaries, ledger.lives, ledger.ops)
        self.losses = [(entry, kind, amounts) for entry in self.entries for kind, amounts in entry.lost.items()]
        self.kinds = list(dict.fromkeys(kind for _, kind, _ in self.losses))

    @cached_property
    def of_kind(self) -> Tensor:
        return torch.tensor([self.kinds.index(kind) for _, kind, _ in self.losses], dtype=torch.long, device="cpu")

    @cached_property
    def lost(self) -> Tensor:
        return _table([amounts for _, _, amounts in self.losses], self.begun.shape)  # (losses, rows, k)

    @cached_property
    def by_kind(self) -> Tensor:
        return self.lost.new_zeros(len(self.kinds), *self.begun.shape).index_add(0, self.of_kind, self.lost)

    @cached_property
    def rest(self) -> Tensor:
        """What is neither at the input nor among the losses."""
        return self.begun - self.arrived - self.padding - self.by_kind.sum(0)

    @cached_property
    def _read(self) -> tuple[Tensor, ...]:
        """What lines are made of, each (rows, targets, …)."""
        shape = self.begun.shape
        carried = _table([b.carried for b in self.boundaries], shape)
        after = self._behind()  # (stretches, kinds, rows, k)
        most = self.lost.abs().argsort(dim=0, descending=True, stable=True)[:_MOST]
        halved = _table([entry.halved for entry in self.entries if entry.halved], shape).sum(0)
        numbers = torch.stack([self.begun, self.arrived, self.padding, self.rest, halved])
        tables = (
            numbers,
            self.by_kind,
            carried,
            self.begun - carried - after.sum(1)[self._stretch[1]],
            most,
            self.lost.gather(0, most),
        )
        return *(t.permute(1, 2, 0) for t in tables), after.permute(2, 3, 0, 1)

    def lines(self, rows: list[int]) -> list[Any]:
        """The entries of some rows: a line, or a list of them where there are several targets."""
        index = torch.tensor(rows, dtype=torch.long, device="cpu")
        targets = self.begun.shape[1]
        tables = (t[index].flatten(0, 1).tolist() for t in self._read)
        lines = [self._line(*of_one) for of_one in zip(*tables, strict=True)]
        return lines if targets == 1 else [lines[i : i + targets] for i in range(0, len(lines), targets)]

    def _line(
        self, numbers: list[float], by_kind: list[float], carried: list[float], beside: list[float], most: list[int],
        amounts: list[float], after: list[list[float]],
    ) -> dict[str, Any]:  # fmt: skip
        start, end, padding, rest, halved = numbers
        kinds, names = self.kinds, self._names
        lost = dict(zip(kinds, by_kind, strict=True))
        if padding:
            lost["padding"] = padding
        later = [{kind: amount for kind, amount in zip(kinds, a, strict=True) if amount} for a in after]
        layers = [
            {"module": module, "call": call, "cut": cut, "carried": c, "beside": b, "lost": later[i].copy()}
            for (module, call, cut, i), c, b in zip(self._places, carried, beside, strict=True)
        ]
        where = [
            {"module": module, "op": op, "kind": kind, "amount": amount}
            for (module, op, kind), amount in zip(map(names.__getitem__, most), amounts, strict=True)
            if amount
        ]
        return {
            "start": start, "end": end, "lost": lost, "unaccounted": rest, "halved": halved, "layers": layers,
            "where": where,
        }  # fmt: skip

    @cached_property
    def _names(self) -> list[tuple[str, str, str]]:
        return [(entry.path, entry.family, kind) for entry, kind, _ in self.losses]

    @cached_property
    def _places(self) -> list[tuple[str, int, bool, int]]:
        """Of each boundary: its module and call, whether it is a cut, and the stretch after it."""
        places = zip(self.boundaries, self.cuts(), self._stretch[1].tolist(), strict=True)
        return [(b.path, b.call, cut, stretch) for b, cut, stretch in places]

    @cached_property
    def _stretch(self) -> tuple[Tensor, Tensor]:
        """At which losses the boundaries stand, each once, and which of these each boundary has."""
        numbers = torch.tensor([entry.number for entry, _, _ in self.losses], dtype=torch.long, device="cpu")
        boundaries = torch.tensor([b.number for b in self.boundaries], dtype=torch.long, device="cpu")
        return torch.searchsorted(numbers, boundaries, right=True).unique(return_inverse=True)

    def _behind(self) -> Tensor:
        """What was lost after each stretch begins, by kind."""
        (losses, *shape), kinds = self.lost.shape, len(self.kinds)
        spread = self.lost.new_zeros(losses, kinds, *shape)
        spread[torch.arange(losses, device="cpu"), self.of_kind] = self.lost
        behind = torch.cat([spread.flip(0).cumsum(0).flip(0), spread.new_zeros(1, kinds, *shape)])
        return behind[self._stretch[0]]


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


def _table(columns: Sequence[Sequence[Tensor | None]], shape: torch.Size) -> Tensor:
    """(columns, rows, targets); what was not met is 0."""
    rows, targets = shape
    zero = torch.zeros(rows, dtype=torch.float64, device="cpu")
    filled = [
        torch.stack([zero if k >= len(c) or (amount := c[k]) is None else amount.cpu() for k in range(targets)], 1)
        for c in columns
    ]
    return torch.stack(filled) if filled else torch.zeros(0, rows, targets, dtype=torch.float64, device="cpu")


def _warn_of_a_leak(subject: Subject, found: _Account, fine: float) -> None:
    """Relevance that is neither at the input nor among the losses."""
    rest = found.begun - found.arrived - found.padding - found.lost.sum(0)
    if bool((rest.abs() <= 0.5 * fine * torch.maximum(found.begun.abs(), found.arrived.abs())).all()):
        return  # whatever the losses add to the size of what it is compared with
    size = torch.maximum(found.arrived.abs(), found.by_kind.abs().sum(0))
    share = found.rest.abs() / torch.maximum(found.begun.abs(), size).clamp(min=1e-30)
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
