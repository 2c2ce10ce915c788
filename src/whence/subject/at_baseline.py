"""A subject at its baseline: to be recorded before a pass that compares with it, and the score there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.engine.leaves import Instead
from whence.subject.baselines import Baseline, is_ids
from whence.subject.masks import real_units
from whence.subject.record import Measured, row_entries
from whence.subject.subject import Subject
from whence.subject.targets import distribution
from whence.util.frozen import changed


def reference(subject: Subject, baseline: Baseline) -> Subject:
    """The subject at x', to be run before it: everything but the explained values is held at x.

    x' is put in place as the values arise, so that no pass is needed to find them. It has one row where one serves all.
    """
    roles = [subject.roles.get(name, "fixed") for name in baseline.by_input]
    if subject.at is not None or "fixed" in roles:
        return subject.pinned().valued(baseline.values(subject))
    values = {}
    for name, value in baseline.by_input.items():
        x = subject.inputs[name]
        real = real_units(subject, name, x.shape)
        if isinstance(value, Tensor) and value.dim() == x.dim() - (subject.roles[name] != "ids" or is_ids(value)):
            value = value.unsqueeze(0)  # one row for all
        values[name] = Instead(value, None if real is None or bool(real.all()) else real)
    at_baseline = changed(subject, values=values, measured=Measured())
    if _one_row_serves_all(subject, values):
        return changed(at_baseline.take(torch.zeros(1, dtype=torch.long, device="cpu")), target=subject.target)
    return at_baseline


def score(subject: Subject) -> tuple[Tensor, dict[str, list[Any]]]:
    """f(x') for the target that was explained, everything else held at x: see `mean_score`."""
    measured = []
    for baseline in subject.baselines:
        at_baseline = subject.pinned().valued(baseline.values(subject))
        at_baseline.run(gradient=False)
        measured.append(at_baseline.measured)
    return mean_score(subject, measured)


def mean_score(subject: Subject, measured: Sequence[Measured]) -> tuple[Tensor, dict[str, list[Any]]]:
    """The mean over baselines of the scores there, (rows, k), and receipt entries about them.

    A classifier's probability is one: a neutral baseline leaves it undecided.
    """
    index, probabilities = subject.measured.index, []
    for one in measured:
        if one.logits is not None and index is not None:
            p = distribution(one.logits.double()).expand(subject.rows, -1)
            probabilities.append(p.gather(1, index[..., 0].to(p.device)))
    mean = {"baseline_probability": row_entries(torch.stack(probabilities).mean(0))} if probabilities else {}
    scores = [one.score for one in measured if one.score is not None]
    return torch.stack(scores).mean(0) if len(scores) > 1 else scores[0], mean


def _one_row_serves_all(subject: Subject, values: Mapping[str, Instead]) -> bool:
    """Whether x' is the same in every row, and what has one entry per row does not differ between them."""

    def differs(value: Any) -> bool:
        if isinstance(value, Tensor):
            per_row = value.dim() > 0 and len(value) == subject.rows
            return bool((value != value[:1]).any()) if per_row else subject.rows in value.shape[1:]
        return not (value is None or isinstance(value, str | int | float))

    single = all(v.real is None and not (isinstance(v.value, Tensor) and len(v.value) > 1) for v in values.values())
    others = [value for name, value in subject.inputs.items() if name not in values]
    plain = isinstance(subject.model, torch.nn.Module) and not callable(subject.target)
    return subject.rows > 1 and single and plain and not any(map(differs, others))
