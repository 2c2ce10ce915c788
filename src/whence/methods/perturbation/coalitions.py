"""Coalitions: the score of each row with some of its units in place and the others replaced by their reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from whence.errors import InputError, ModelError
from whence.methods.answer import Answer
from whence.methods.perturbation import growing
from whence.subject import Subject, at_baseline
from whence.subject.batching import in_batches, values_of
from whence.subject.record import Measured
from whence.subject.units import Numbers, explained_inputs, joint_numbers, shape_of, unit_numbers
from whence.util.keys import input_of
from whence.util.progress import bar

_NEAR = 1e-3  # how far a score may be off that should be the same


@dataclass(frozen=True, eq=False)
class Coalitions:
    """Some coalitions of n players, made when they are asked for: `at` maps numbers (m,) to bool (m, n)."""

    count: int
    at: Callable[[Tensor], Tensor]
    nobody: int | None = None  # the number of the coalition in which nobody is there


def every(n: int) -> Coalitions:
    """All 2ⁿ coalitions of n players: bit i of a number says whether player i is there."""
    return Coalitions(2**n, lambda which: (which[:, None] >> torch.arange(n, device="cpu")) % 2 == 1, 0)


def listed(coalitions: Tensor, nobody: int | None = None) -> Coalitions:
    """Coalitions that are there already, bool (m, n)."""
    return Coalitions(len(coalitions), lambda which: coalitions[which], nobody)


@dataclass(frozen=True, eq=False)
class Group:
    """Rows that take the same coalitions: what they have in common is their key."""

    rows: Tensor  # (r,)
    key: tuple[int, ...]
    coalitions: Coalitions
    drawn: Any = None  # what the coalitions were made of


@dataclass(frozen=True, eq=False)
class Played:
    """The scores of all groups' coalitions, (r, count, k) each in float64, and what was measured where nobody is."""

    groups: Sequence[Group]
    scores: Sequence[Tensor]
    nobody: Measured | None = None

    def first(self, like: Tensor) -> Tensor:
        """Each row's first score, (rows, k)."""
        found = torch.empty(len(like), like.shape[1], dtype=torch.float64, device="cpu")
        for group, scores in zip(self.groups, self.scores, strict=True):
            found[group.rows] = scores[:, 0]
        return found.to(like)


@dataclass(frozen=True, eq=False)
class Players:
    """The units of a subject, numbered from 0 in each row over all of its explained inputs.

    A model with one score for all rows has one game, in which a unit is removed from every row.
    """

    subject: Subject  # pinned
    reference: dict[str, Tensor]  # one row of it, where all are the same
    numbers: Numbers

    @property
    def score(self) -> Tensor:
        """f(x), (rows, k)."""
        assert self.subject.measured.score is not None
        return self.subject.measured.score

    def grouped(self, make: Callable[..., Any], *, seeded: bool = False, by: Tensor | None = None) -> list[Group]:
        """Rows with as many players (or the same of other numbers, (rows, …)), and the same seed where it matters.

        `make(*key)` gives the coalitions of a group, alone or with what they were made of; the row whose seed counts
        comes last in the key.
        """
        key = self.numbers.counts[:, None] if by is None else by  # (rows, …)
        key = key.expand(len(self.score), -1)
        if seeded:
            known: dict[int, int] = {}
            first = [known.setdefault(seed, row) for row, seed in enumerate(self.subject.seeds[: len(key)])]
            key = torch.cat([key, torch.tensor(first, device="cpu")[:, None]], 1)
        if bool((key == key[:1]).all()):
            kinds, of = key[:1], torch.zeros(len(key), dtype=torch.long, device="cpu")
        else:
            kinds, of = key.unique(dim=0, return_inverse=True)
        order, sizes = of.argsort(stable=True), torch.bincount(of).tolist()
        groups = []
        for kind, rows in zip(kinds.tolist(), order.split(sizes), strict=True):
            made = make(*kind)
            coalitions, drawn = made if isinstance(made, tuple) else (made, None)
            groups.append(Group(rows, tuple(kind), coalitions, drawn))
        return groups

    def alone(self, make: Callable[[int, int], Any]) -> list[Group]:
        """A group of its own for each row: `make(n, row)`."""
        row = torch.arange(len(self.score), device="cpu")[:, None]
        return self.grouped(make, by=torch.cat([self.numbers.counts[:, None].expand(len(row), 1), row], 1))

    def play(self, groups: Sequence[Group], *, in_order: bool = False) -> Played:
        """f of each row's coalitions; `in_order`: those of a text share what stands before the first removed token.

        That is for coalitions of which the first is everybody, and most leave a few players out.
        """
        how = growing.prefixed(self.subject, sum(g.coalitions.count for g in groups)) if in_order else None
        if isinstance(how, growing.Prefixed):
            played = self._played(groups, partial(self._run_in_order, how))
            if bool(((played.first(self.score) - self.score).abs() <= _NEAR * (1 + self.score.abs())).all()):
                self.subject.record.overall["prefix_cache"] = "grown in the order of the text"
                return played
            how = "with it the model gives other scores"
        if how is not None:
            self.subject.record.overall["prefix_cache"] = f"none: {how}"
        return self._played(groups, self._run_whole if self.subject.whole else self._run)

    def _played(self, groups: Sequence[Group], run: Callable[..., Iterator[tuple[Tensor, Any]]]) -> Played:
        counts = [group.coalitions.count for group in groups]
        pairs = list(zip(groups, counts, strict=True))
        rows = torch.cat([group.rows.repeat_interleave(n) for group, n in pairs])
        which = torch.cat([torch.arange(n, device="cpu").repeat(len(group.rows)) for group, n in pairs])
        found = torch.zeros(len(rows), self.score.shape[1], dtype=torch.float64, device="cpu")
        noting = _Nobody(self, groups)
        with bar(len(rows), self.subject.progress, self.subject.method) as count, _replacing(self.subject):
            for items, (scores, logits) in run(groups, rows, which):
                real = items >= 0
                found[items[real]] = scores[real]
                noting.note(rows, which, items, scores, logits)
                count(int(real.sum()))
        parts = zip(found.split([len(group.rows) * n for group, n in pairs]), pairs, strict=True)
        return Played(groups, [part.view(len(g.rows), n, -1) for part, (g, n) in parts], noting.measured())

    def _run(self, groups: Sequence[Group], rows: Tensor, which: Tensor) -> Iterator[tuple[Tensor, Any]]:
        """Many coalitions of many rows in one pass."""
        group_of = torch.zeros(len(self.score), dtype=torch.long, device="cpu")
        for number, group in enumerate(groups):
            group_of[group.rows] = number

        def work(run: Tensor, items: Tensor) -> tuple[Tensor, Tensor | None]:
            inside = self._inside(groups, group_of[run], values_of(items, which, 0))
            return _scored(self.subject.take(run, bare=True).valued(self.values(run, inside)))

        return in_batches(self.subject, rows, work, cost=0.25)

    def _run_in_order(
        self, how: growing.Prefixed, groups: Sequence[Group], rows: Tensor, which: Tensor
    ) -> Iterator[tuple[Tensor, Any]]:
        """Coalitions of one text, each from where it differs from the text on."""
        name, first = input_of(how.key), torch.zeros(1, dtype=torch.long, device="cpu")

        def keep(items: Tensor) -> Tensor:
            inside = self._inside(groups, first.expand(len(items)), which[items])
            return self.numbers.read(name, inside, first.expand(len(items))).view(len(items), -1)

        return growing.run_in_order(how, keep, len(rows), self.reference[how.key], _scored)

    def _run_whole(self, groups: Sequence[Group], rows: Tensor, which: Tensor) -> Iterator[tuple[Tensor, Any]]:
        """One coalition of all rows at a time."""
        for item in range(len(rows)):
            inside = self._inside(groups, rows[item : item + 1], which[item : item + 1])
            yield torch.tensor([item], device="cpu"), _scored(self.subject.valued(self.values(None, inside)))

    def _inside(self, groups: Sequence[Group], of: Tensor, which: Tensor) -> Tensor:
        """Who is there, (m, most + 1): the last column stands for what is never removed."""
        most = self.numbers.most
        if len(groups) == 1:
            there = groups[0].coalitions.at(which)
            return torch.cat([there, there.new_ones(len(there), 1)], 1)
        inside = torch.ones(len(which), most + 1, dtype=torch.bool, device="cpu")
        for number in of.unique().tolist():
            mine = (of == number).nonzero().flatten()
            there = groups[number].coalitions.at(which[mine])
            inside[mine, : there.shape[1]] = there
        return inside

    def values(self, rows: Tensor | None, inside: Tensor) -> dict[str, Tensor]:
        """The explained values of these rows (None: all of them, one coalition): x inside a coalition, x' outside."""
        by_key = {}
        for key, x in self.subject.values.items():
            keep = self.numbers.read(input_of(key), inside, rows).to(x.device)
            keep = keep.view(*keep.shape, *[1] * (x.dim() - keep.dim()))
            reference = self.reference[key]
            if rows is not None:
                x, reference = _taken(x, rows), _taken(reference, rows)
            by_key[key] = torch.where(keep, x, reference)
        return by_key

    def spread(self, played: Played, scores: Sequence[Tensor], *, shared: bool = False) -> dict[str, Tensor]:
        """Each group's scores (r, n, k) at the elements of their units, or shared equally among them: (rows, k, …)."""
        most, k = self.numbers.most, self.score.shape[1]
        table = torch.zeros(len(self.score), most + 1, k, dtype=torch.float64, device="cpu")
        for group, some in zip(played.groups, scores, strict=True):
            table[group.rows, : some.shape[1]] = some.to(table)
        if shared:
            table = table / self.numbers.sizes.clamp(min=1)[..., None]
        by_key = {}
        for name in explained_inputs(self.subject):
            shape = shape_of(self.subject, name)
            whole = self.numbers.read(name, table, None).movedim(-1, 1)
            whole = whole.expand(-1, -1, *shape[1:])  # (rows, k, …)
            keys = [key for key in self.subject.values if input_of(key) == name]
            for key in keys:  # the values of ids that enter two embeddings are summed later
                value = self.subject.values[key]
                dtype = value.dtype if value.is_floating_point() else self.score.dtype
                by_key[key] = (whole / len(keys)).to(value.device, dtype)
        return by_key

    def answer(
        self, played: Played, values: Sequence[Tensor], *, shared: bool = False, besides: int = 0,
        starts: bool = False, extras: Mapping[str, Sequence[Tensor]] | None = None,
    ) -> Answer:  # fmt: skip
        """The answer from each group's values (r, n, k).

        `besides` evaluations were for x' alone; `starts` says that the first score is where values begin to add up.
        """
        counts = torch.zeros(len(self.score), dtype=torch.long, device="cpu")
        for group in played.groups:
            counts[group.rows] = group.coalitions.count - besides
        score, noted = (None, {}) if played.nobody is None else at_baseline.mean_score(self.subject, [played.nobody])
        return Answer(
            self.spread(played, values, shared=shared),
            baseline_score=score,
            start_score=played.first(self.score) if starts else None,
            extras={name: self.spread(played, more, shared=shared) for name, more in (extras or {}).items()},
            per_row={"evaluations": counts.tolist(), **noted},
        )


def players(subject: Subject, units: object = "auto", numbers: Mapping[str, Tensor] | None = None) -> Players:
    """The players of a subject: its units, by the parameter `units` or as they are numbered already."""
    pinned = subject.pinned()
    joint = joint_numbers(pinned, unit_numbers(pinned, units) if numbers is None else numbers)
    if pinned.whole and len(joint.counts) > 1:
        raise InputError(
            f"{subject.method}: units= differs from row to row, but the model gives one score for all rows.\n"
            "  Give one row of units, which are removed from every row."
        )
    empty = (joint.counts == 0).nonzero().flatten().tolist()
    if empty:
        raise InputError(
            f"{subject.method}: units= numbers nothing in row {empty[0]}, so there is nothing to remove.\n"
            "  Give some of its elements a number of at least 0."
        )
    with _replacing(subject):
        reference = subject.baselines[0].values(subject)
    return Players(pinned, {key: _one_row(value) for key, value in reference.items()}, joint)


@dataclass(eq=False)
class _Nobody:
    """What is measured where nobody is there, which is the baseline if everything can be removed."""

    game: Players
    groups: Sequence[Group]
    score: Tensor = field(init=False)
    logits: Tensor | None = None

    def __post_init__(self) -> None:
        self.score = torch.empty_like(self.game.score)
        self.place = torch.full((len(self.score),), -1, device="cpu")
        for group in self.groups:
            self.place[group.rows] = -1 if group.coalitions.nobody is None else group.coalitions.nobody
        self.wanted = self.game.numbers.everything and bool((self.place >= 0).all())

    def note(self, rows: Tensor, which: Tensor, items: Tensor, scores: Tensor, logits: Tensor | None) -> None:
        if not self.wanted:
            return
        there = items.clamp(min=0)
        mine = ((items >= 0) & (which[there] == self.place[rows[there]])).nonzero().flatten()
        at = rows[there[mine]].to(self.score.device)
        self.score[at] = scores[mine].to(self.score)
        if logits is not None:
            if self.logits is None:
                self.logits = logits.new_zeros(len(self.score), logits.shape[1])
            self.logits[at.to(logits.device)] = logits[mine.to(logits.device)]

    def measured(self) -> Measured | None:
        return Measured(self.score, self.game.subject.measured.index, self.logits) if self.wanted else None


def _scored(some: Subject) -> tuple[Tensor, Tensor | None]:
    score = some.run_again(gradient=False).score.detach().cpu().double()
    return score, some.measured.logits


def _taken(value: Tensor, rows: Tensor) -> Tensor:
    """The values of these rows; one row is broadcast."""
    return value.index_select(0, rows.to(value.device)) if len(value) > 1 else value


def _one_row(value: Tensor) -> Tensor:
    return value[:1] if len(value) > 1 and bool((value == value[:1]).all()) else value


@contextmanager
def _replacing(subject: Subject) -> Iterator[None]:
    """A model that has no score there is not at fault: the baseline may be."""
    try:
        yield
    except ModelError as error:
        raise ModelError(
            f"{subject.method} replaces units by the baseline and runs such rows together. {error}\n"
            "  Or give another baseline=, at which the model has a score."
        ) from error.__cause__
