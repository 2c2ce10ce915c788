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
_ROUNDING = 3e-3  # of what is handed on, all ops together; the estimate is often too small


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
        fine = max(_LEAK, 32 * torch.finfo(done.held.dtype).eps)
        _warn_of_a_leak(subject, found, fine)
        _warn_of_rounding(subject, found)
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
    def rounded(self) -> Tensor:
        """Which part of what each op handed on may be rounding, (entries, rows, k)."""
        parts, handed = (
            _table([[None if t is None else t[i] for t in e.rounding] for e in self.entries], self.begun.shape)
            for i in range(2)
        )
        return parts / torch.maximum(handed, self.begun.abs()).clamp(min=1e-30)

    @cached_property
    def rest(self) -> Tensor:
        """What is neither at the input nor among the losses."""
        return self.begun - self.arrived - self.padding - self.by_kind.sum(0)

    @cached_property
    def _read(self) -> tuple[Tensor, ...]:
        """What lines are made of, each (…, rows, targets), in columns."""
        shape = self.begun.shape
        carried = _table([b.carried for b in self.boundaries], shape)
        after = self._behind()  # (stretches, kinds, rows, k)
        most = self.lost.abs().argsort(dim=0, descending=True, stable=True)[:_MOST]
        halved = _table([entry.halved for entry in self.entries if entry.halved], shape).sum(0)
        numbers = torch.stack([self.begun, self.arrived, self.padding, self.rest, halved, self.rounded.sum(0)])
        tables = (
            numbers,
            self.by_kind,
            carried,
            self.begun - carried - after.sum(1)[self._stretch[1]],
            most,
            self.lost.gather(0, most),
        )
        return *tables, after.flatten(0, 1)

    def lines(self, rows: list[int]) -> list[Any]:
        """The entries of some rows: a line, or a list of them where there are several targets.

        They are made column by column: one line at a time takes Python twice as long.
        """
        targets = self.begun.shape[1]
        index = torch.tensor(rows, dtype=torch.long, device="cpu")
        numbers, by_kind, carried, beside, most, amounts, after = (t[:, index].flatten(1) for t in self._read)
        lost = [dict(zip(self.kinds, of_one, strict=True)) for of_one in by_kind.T.tolist()]
        for i in numbers[2].nonzero().flatten().tolist():
            lost[i]["padding"] = numbers[2, i].item()
        parts = (*numbers.tolist(), lost, self._layers(carried, beside, after), self._where(most, amounts))
        lines = [
            {
                "start": start, "end": end, "lost": lost, "unaccounted": rest, "halved": halved,
                "rounding": rounding, "layers": layers, "where": where,
            }
            for start, end, _, rest, halved, rounding, lost, layers, where in zip(*parts, strict=True)
        ]  # fmt: skip
        return lines if targets == 1 else [lines[i : i + targets] for i in range(0, len(lines), targets)]

    def _layers(self, carried: Tensor, beside: Tensor, after: Tensor) -> list[list[dict[str, Any]]]:
        """What passed each boundary, line by line."""
        behind = after.unflatten(0, (len(self._stretch[0]), len(self.kinds)))  # (stretches, kinds, lines)
        columns = [
            [
                {"module": module, "call": call, "cut": cut, "carried": c, "beside": b, "lost": lost}
                for c, b, lost in zip(*of_all, _named(self.kinds, behind[stretch]), strict=True)
            ]
            for (module, call, cut, stretch), *of_all in zip(
                self._places, carried.tolist(), beside.tolist(), strict=True
            )
        ]
        return _turned(columns, after.shape[1])

    def _where(self, most: Tensor, amounts: Tensor) -> list[list[dict[str, Any]]]:
        """The ops that lost most, line by line; amounts are in order, those of 0 last."""
        names = self._names
        columns = [
            [
                {"module": name[0], "op": name[1], "kind": name[2], "amount": amount}
                for name, amount in zip(map(names.__getitem__, own), of_all, strict=True)
            ]
            for own, of_all in zip(most.tolist(), amounts.tolist(), strict=True)
        ]
        counts = (amounts != 0).sum(0).tolist()
        return [own[:count] for own, count in zip(_turned(columns, len(counts)), counts, strict=True)]

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


def _turned(columns: Sequence[Sequence[Any]], lines: int) -> list[list[Any]]:
    return list(map(list, zip(*columns, strict=True))) if columns else [[] for _ in range(lines)]


def _named(kinds: Sequence[str], amounts: Tensor) -> list[dict[str, float]]:
    """For each line, the amounts that are not 0 by kind."""
    named: list[dict[str, float]] = [{} for _ in range(amounts.shape[1])]
    for kind, own in zip(kinds, amounts.tolist(), strict=True):
        for of_one, amount in zip(named, own, strict=True):
            if amount:
                of_one[kind] = amount
    return named


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


def _warn_of_rounding(subject: Subject, found: _Account) -> None:
    """Relevance that was divided by sums which nearly cancel, so that their last digits decide."""
    if not any(entry.rounding for entry in found.entries):
        return
    share = found.rounded.sum(0)  # (rows, k)
    over = share > _ROUNDING
    if not bool(over.any()):
        return
    warn(
        f"{subject.method}: the values of {{rows}} depend on rounding: relevance was divided by sums that nearly "
        "cancel (of residual branches, of queries and keys, of a convolution's terms), and an estimated {percent} % of "
        "what was handed on is rounding. Take attnlrp, deeplift or integrated_gradients, or another composite=. In "
        "double precision (model.double()) the values can be repeated, but small changes of the input change them.",
        [subject.row_numbers[row] for row in over.any(1).nonzero().flatten().tolist()],
        percent=100 * min(1.0, float(share[over].max())),
    )
