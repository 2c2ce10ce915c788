"""Coalitions: the score of each row with some of its units in place and the others replaced by their reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import InputError, ModelError
from whence.subject import Subject
from whence.subject.batching import in_batches, values_of
from whence.subject.masks import real_units
from whence.subject.units import explained_inputs, shape_of, unit_numbers
from whence.util.keys import input_of
from whence.util.progress import bar


@dataclass(frozen=True, eq=False)
class Coalitions:
    """Some coalitions of one row's n players, made when they are asked for: `at` maps numbers (m,) to bool (m, n)."""

    count: int
    at: Callable[[Tensor], Tensor]


def every(n: int) -> Coalitions:
    """All 2ⁿ coalitions of n players: bit i of a number says whether player i is there."""
    return Coalitions(2**n, lambda which: (which[:, None] >> torch.arange(n, device="cpu")) % 2 == 1)


def listed(coalitions: Tensor) -> Coalitions:
    """Coalitions that are there already, bool (m, n)."""
    return Coalitions(len(coalitions), lambda which: coalitions[which])


@dataclass(frozen=True, eq=False)
class Players:
    """The units of a subject, numbered from 0 in each row over all of its explained inputs."""

    subject: Subject  # pinned
    reference: dict[str, Tensor]
    numbers: dict[str, Tensor]  # by input: (rows, …), broadcasts to it; -1 is never removed
    counts: list[int]  # players per row

    def evaluate(self, coalitions: Sequence[Coalitions]) -> list[Tensor]:
        """f of each row's coalitions, (count, k) in float64."""
        subject, score = self.subject, self.subject.measured.score
        assert score is not None
        counts = [asked.count for asked in coalitions]
        found = torch.zeros(sum(counts), score.shape[1], dtype=torch.float64, device="cpu")
        rows = torch.arange(len(counts), device="cpu").repeat_interleave(torch.tensor(counts, device="cpu"))
        numbers = torch.cat([torch.arange(count, device="cpu") for count in counts])

        def work(run: Tensor, items: Tensor) -> Tensor:
            which = values_of(items, numbers, 0)
            there, sizes = run.unique_consecutive(return_counts=True)  # items come in the order of their rows
            parts = which.split(sizes.tolist())
            inside = [coalitions[row].at(part) for row, part in zip(there.tolist(), parts, strict=True)]
            some = subject.take(run).valued(self._values(run, inside))
            with _replacing(subject):
                return some.run_again(gradient=False).score.detach().cpu().double()

        with bar(len(rows), subject.progress, subject.method) as count:
            for items, scores in in_batches(subject, rows, work, cost=0.25):
                real = items >= 0
                found[items[real]] = scores[real]
                count(int(real.sum()))
        return list(found.split(counts))

    def spread(self, scores: Sequence[Tensor], *, shared: bool = False) -> dict[str, Tensor]:
        """Each row's scores (n, k) at the elements of their units, or shared equally among them: (rows, k, …)."""
        by_key = {}
        for name, numbers in self.numbers.items():
            shape = shape_of(self.subject, name)
            copies = shape[1:].numel() // numbers[0].numel()  # elements that one number stands for
            rows = [_placed(s, of, copies if shared else 0) for s, of in zip(scores, numbers, strict=True)]
            whole = torch.stack(rows).expand(-1, -1, *shape[1:])  # (rows, k, …)
            keys = [key for key in self.subject.values if input_of(key) == name]
            for key in keys:  # the values of ids that enter two embeddings are summed later
                value = self.subject.values[key]
                by_key[key] = (whole / len(keys)).to(value.device, value.dtype)
        return by_key

    def empty_score(self, scores: Sequence[Tensor]) -> Tensor:
        """Each row's first score (rows, k), that of nobody: f(x'), except for what is never removed."""
        assert self.subject.measured.score is not None
        return torch.stack([row[0] for row in scores]).to(self.subject.measured.score)

    def _values(self, rows: Tensor, inside: Sequence[Tensor]) -> dict[str, Tensor]:
        """The explained values of these rows: x inside a coalition, x' outside."""
        kept = [torch.cat([mask, mask.new_ones(len(mask), 1)], 1) for mask in inside]  # at -1: never removed
        by_key = {}
        for key, x in self.subject.values.items():
            numbers = self.numbers[input_of(key)]
            parts = [mask[:, numbers[row]] for row, mask in zip(rows.unique().tolist(), kept, strict=True)]
            keep = torch.cat(parts).to(x.device)  # (m, …)
            keep = keep.view(*keep.shape, *[1] * (x.dim() - keep.dim()))
            reference = self.reference[key]
            if len(x) > 1:  # one row is broadcast
                which = rows.to(x.device)
                x, reference = x.index_select(0, which), reference.index_select(0, which)
            by_key[key] = torch.where(keep, x, reference)
        return by_key


def players(subject: Subject, units: object = "auto", numbers: dict[str, Tensor] | None = None) -> Players:
    """The players of a subject: its units, by the parameter `units` or as they are numbered already."""
    pinned = subject.pinned()
    given = unit_numbers(pinned, units) if numbers is None else numbers
    counts = [0] * pinned.rows
    by_input = {}
    for name in explained_inputs(pinned):
        shape = shape_of(pinned, name)
        real = real_units(pinned, name, shape)
        numbers_of = given[name].expand(pinned.rows, *given[name].shape[1:])
        if real is not None:
            numbers_of = numbers_of.masked_fill(~real.cpu().view(*real.shape, *[1] * (len(shape) - 2)), -1)
        alike = real is None and len(given[name]) == 1 and len(set(counts)) == 1
        rows = [_from(numbers_of[row], counts[row]) for row in range(1 if alike else pinned.rows)]
        by_input[name] = torch.stack([numbers for numbers, _ in rows]).expand_as(numbers_of)
        counts = [end for _, end in rows] * (pinned.rows if alike else 1)
    for row, count in enumerate(counts):
        if count == 0:
            raise InputError(
                f"{subject.method}: units= numbers nothing in row {row}, so there is nothing to remove.\n"
                "  Give some of its elements a number of at least 0."
            )
    with _replacing(subject):
        return Players(pinned, subject.baselines[0].values(subject), by_input, counts)


def counted(scores: Sequence[Tensor]) -> dict[str, list[int]]:
    """How many evaluations each row took, for the receipt."""
    return {"evaluations": [len(row) for row in scores]}


def _from(numbers: Tensor, first: int) -> tuple[Tensor, int]:
    """One row's numbers without gaps, from `first` on, and the next one."""
    real = numbers >= 0
    known, place = numbers[real].unique(return_inverse=True)
    renumbered = torch.full_like(numbers, -1)
    renumbered[real] = place + first
    return renumbered, first + len(known)


def _placed(scores: Tensor, numbers: Tensor, copies: int) -> Tensor:
    """One row's scores (n, k) where their numbers are, (k, …); divided by the elements of each unit if there are."""
    if copies:
        sizes = torch.bincount(numbers[numbers >= 0], minlength=len(scores)) * copies
        scores = scores / sizes.clamp(min=1)[:, None]
    return torch.cat([scores, scores.new_zeros(1, scores.shape[1])])[numbers].movedim(-1, 0)


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
