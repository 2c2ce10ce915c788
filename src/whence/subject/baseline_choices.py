"""Baselines that are chosen row by row: the most neutral of several, and one from which an integral converges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.errors import BaselineError, warn
from whence.subject.batching import in_batches, values_of
from whence.subject.subject import Subject
from whence.subject.targets import distribution
from whence.util.keys import any_repeated
from whence.util.stats import score_scale

if TYPE_CHECKING:
    from whence.subject.baselines import Baseline

_NEAR = (0.0, 2.0**-24, 2.0**-18, 2.0**-14)  # points on the path from 0, at which the score may not have moved
_MOVED = 0.01  # by this much, relative to its rise over the whole path; a smooth model's has by about 1e-4


def most_neutral(subject: Subject, candidates: Sequence[Baseline], names: Sequence[str]) -> Mapping[str, Any]:
    """For each row, the candidate at which the model is least decided."""
    resolved = [candidate.resolve(subject) for candidate in candidates]
    x0 = [baseline.values(subject) for baseline in resolved]
    choice = torch.stack([_decision(subject.pinned().valued(values)) for values in x0]).argmin(0)  # (rows,)
    subject.record.note_per_row(baseline=[names[int(i)] for i in choice])
    if subject.at is None and not any_repeated(x0[0]):
        return {key: _row_by_row([values[key] for values in x0], choice) for key in x0[0]}
    if len(set(choice.tolist())) > 1:
        raise BaselineError(
            "The most neutral baseline differs from row to row, but all rows need the same one with at=, and for ids "
            f"that enter two embeddings.\n  The rows chose {choice.tolist()} of the candidates: explain them in "
            "separate calls, or give one baseline."
        )
    return resolved[int(choice[0])].by_input


def integrable(subject: Subject, candidates: Sequence[Baseline]) -> Mapping[str, Any]:
    """Of two candidates, zero embeddings; the mean embedding for rows whose score leaves zero in a jump."""
    zero, mean = candidates
    pinned, at_zero = subject.pinned(), zero.values(subject)
    jumps = _jumps(pinned, at_zero)
    at_mean = _values_if_any(subject, mean) if any(jumps) and not any_repeated(pinned.values) else None
    subject.record.note_per_row(baseline=["mean" if jump and at_mean is not None else "zero" for jump in jumps])
    if at_mean is None:
        return zero.by_input
    warn(
        f"{subject.method}: from an embedding of zeros the integral does not converge in {{rows}} (a normalisation "
        "divides by the size of what starts at 0), so the baseline there is the mean embedding. Give baseline=0 to "
        'start at zero all the same, or another baseline, such as "pad".',
        [subject.row_numbers[row] for row, jump in enumerate(jumps) if jump],
    )
    choice = torch.tensor([int(jump) for jump in jumps], device="cpu")
    return {key: _row_by_row([at_zero[key], at_mean[key]], choice) for key in pinned.values}


def _decision(at_baseline: Subject) -> Tensor:
    """How decided the model is, per row: the divergence of its classes from evenness, or the size of its score."""
    at_baseline.run(gradient=False)
    logits, score = at_baseline.measured.logits, at_baseline.measured.score
    if logits is None:
        assert score is not None
        return score.abs().amax(1)
    p = distribution(logits.double())
    return (p * (p + 1e-300).log()).sum(1) + math.log(p.shape[1])


def _values_if_any(subject: Subject, baseline: Baseline) -> dict[str, Tensor] | None:
    """x' by a baseline that may not exist: the table of embeddings is not always to be found."""
    try:
        return baseline.resolve(subject).values(subject)
    except BaselineError:
        return None


def _jumps(pinned: Subject, start: Mapping[str, Tensor]) -> list[bool]:
    """Whether each row's score has moved next to the start of its path."""
    rows = torch.arange(pinned.rows, device="cpu").repeat_interleave(len(_NEAR))
    alpha = torch.tensor(_NEAR, dtype=torch.float64, device="cpu").repeat(pinned.rows)

    def work(run: Tensor, items: Tensor) -> Tensor:
        at, values = values_of(items, alpha, 1), {}
        for key, end in pinned.values.items():
            first, last = (t.index_select(0, run.to(t.device)) for t in (start[key], end))
            values[key] = torch.lerp(first, last, at.to(last).view(-1, *[1] * (last.dim() - 1)))
        return pinned.take(run).valued(values).run(gradient=False).score.double().cpu()

    assert pinned.measured.score is not None
    score = pinned.measured.score.double().cpu()  # (rows, k)
    scores = score.new_zeros(len(alpha), score.shape[1])
    for items, some in in_batches(pinned, rows, work):
        scores[items[items >= 0]] = some[items >= 0]
    near = scores.unflatten(0, (pinned.rows, len(_NEAR)))  # (rows, points, k)
    first, moved = near[:, 0], (near - near[:, :1]).abs().amax(1)
    return (moved > _MOVED * score_scale(score, first)).any(1).tolist()


def _row_by_row(values: list[Tensor], choice: Tensor) -> Tensor:
    return torch.stack([values[int(i)][row] for row, i in enumerate(choice)])
