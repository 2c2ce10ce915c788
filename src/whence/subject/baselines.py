"""Baselines: from what the user gives to values in the place of the explained ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from whence.engine.leaves import Instead
from whence.errors import BaselineError, did_you_mean, warn
from whence.subject.batching import batches, of
from whence.subject.masks import real_units
from whence.subject.named_baselines import Default, Neutral, named
from whence.subject.record import Measured
from whence.subject.subject import Subject
from whence.subject.targets import distribution
from whence.util.keys import any_repeated, input_of
from whence.util.stats import score_scale

Given = Mapping[str, Any]  # by input name: a number, a tensor, or a name of the registry
_NEAR = (0.0, 2.0**-24, 2.0**-18, 2.0**-14)  # where on a line from 0 the score may not have moved
_MOVED = 0.01  # by this much, relative to its rise over the whole line; a smooth model's has by about 1e-4


def read(subject: Subject, baseline: Any, rest: float | None = None) -> tuple[Any, ...]:
    """A baseline as the user gave it, by input and checked; several if it was a list, none if it was None.

    `rest` is for explained inputs that a dict leaves out; without it they stay as they are.
    """
    if baseline is None:
        return ()
    if isinstance(baseline, Neutral):
        if any(candidate is None or isinstance(candidate, list | Neutral) for candidate in baseline.candidates):
            raise BaselineError(f"neutral{baseline.names}: give baselines one by one, not lists of them.")
        return (replace(baseline, candidates=tuple(read(subject, one, rest)[0] for one in baseline.candidates)),)
    if isinstance(baseline, list):
        if not baseline:
            raise BaselineError("The list of baselines is empty.\n  Give at least one.")
        return tuple(one for item in baseline for one in read(subject, item, rest))
    given = _by_name(subject, baseline)
    if rest is not None:
        given = {**dict.fromkeys(subject.input_roles, rest), **given}
    for name, value in given.items():
        if isinstance(value, str) and value not in named:
            raise BaselineError(f"There is no baseline {value!r}. {did_you_mean(value, named)}")
        if isinstance(value, Tensor) and (subject.input_roles.get(name) != "ids" or _is_ids(value)):
            _filled(name, value, subject.inputs[name])
        elif not isinstance(value, str | Tensor):
            _filled(name, value, torch.zeros((), device="cpu"))
    return (given,)


def default(subject: Subject, facts: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a method takes that needs a baseline and was given none: 0; for integrals over ids, a `Default`."""
    given = read(subject, 0.0)
    ids = [name for name, role in subject.roles.items() if role == "ids"]
    if not (facts.get("integral") and ids and subject.at is None):
        return given
    return (Default((given[0], {**given[0], **dict.fromkeys(ids, "mean")})),)


def defaulted(subject: Subject, facts: Mapping[str, Any]) -> Subject:
    """The subject with the default baseline of a method with these facts, for methods that come to need one."""
    return resolved(replace(subject, baseline=default(subject, facts)))


def one_by_one(subject: Subject, baseline: Any) -> Any:
    """A background: a tensor of references, or a dict or tuple of such, as a list of baselines of one row each."""
    tensors = baseline.values() if isinstance(baseline, Mapping) else baseline if isinstance(baseline, tuple) else ()
    if isinstance(baseline, Tensor):
        return [baseline[i : i + 1] for i in range(len(baseline))] if baseline.dim() > 1 else baseline
    counts = {len(t) for t in tensors if isinstance(t, Tensor) and t.dim() > 1}
    if len(counts) != 1 or not all(isinstance(t, Tensor) for t in tensors):
        return baseline
    if isinstance(baseline, Mapping):
        return [{name: t[i : i + 1] for name, t in baseline.items()} for i in range(counts.pop())]
    return [tuple(t[i : i + 1] for t in baseline) for i in range(counts.pop())]


def resolved(subject: Subject) -> Subject:
    """The subject with numbers and tensors in the place of names."""
    return replace(subject, baseline=tuple(_resolved(subject, given) for given in subject.baseline))


def _resolved(subject: Subject, given: Given | Neutral | Default) -> Given:
    if isinstance(given, Default):
        return _with_an_integral(subject, given)
    if isinstance(given, Neutral):
        return _most_neutral(subject, given)
    return {
        name: named[value].function(subject, name) if isinstance(value, str) else value for name, value in given.items()
    }


def reference(subject: Subject, which: int = 0) -> dict[str, Tensor]:
    """x': what stands in the place of each explained value, like `subject.pinned().values`; padding stays."""
    pinned, given = subject.pinned(), subject.baseline[which]
    there = _without_a_pass(pinned, given) if subject.at is None else None
    if there is None:
        at_reference = referred(subject, given)
        at_reference.run(gradient=False)
        there = at_reference.measured.values
    found = {}
    for key, value in pinned.values.items():
        other = there[key].expand_as(value)
        real = real_units(subject, key, value.shape)
        mask = None if real is None else real.view(*real.shape, *[1] * (value.dim() - 2)).to(value.device)
        found[key] = other if mask is None else torch.where(mask, other, value)
    return found


def _without_a_pass(pinned: Subject, given: Given) -> dict[str, Tensor] | None:
    """x' where it can be written down: anything but ids, whose embeddings the model knows."""
    found = {}
    for key, value in pinned.values.items():
        name = input_of(key)
        if name not in given:
            found[key] = value
        elif pinned.roles.get(name) == "ids" and _is_ids(given[name]):
            return None
        else:
            found[key] = _filled(name, given[name], value)
    return None if any(name not in pinned.roles for name in given) else found


def recorded(subject: Subject, which: int = 0) -> Subject:
    """The subject at x', to be run before it: everything but the explained values is held at x.

    x' is put in place as the values arise, so that no pass is needed to find them. It has one row where one serves all.
    """
    if subject.at is not None:
        return subject.pinned().valued(reference(subject, which))
    given = subject.baseline[which]
    values = {}
    for name, value in given.items():
        if subject.roles.get(name, "fixed") == "fixed":
            return subject.pinned().valued(reference(subject, which))
        x = subject.inputs[name]
        real = real_units(subject, name, x.shape)
        if isinstance(value, Tensor) and value.dim() == x.dim() - (subject.roles[name] != "ids" or _is_ids(value)):
            value = value.unsqueeze(0)  # one row for all
        values[name] = Instead(value, None if real is None or bool(real.all()) else real)
    at_reference = replace(subject, values=values, measured=Measured())
    if _serves_all(subject, values):
        return replace(at_reference.take(torch.zeros(1, dtype=torch.long, device="cpu")), target=subject.target)
    return at_reference


def _serves_all(subject: Subject, values: Mapping[str, Instead]) -> bool:
    """Whether one row of x' stands for all: nothing that goes with the rows differs between them."""

    def differs(value: Any) -> bool:
        if isinstance(value, Tensor):
            per_row = value.dim() > 0 and len(value) == subject.rows
            return bool((value != value[:1]).any()) if per_row else subject.rows in value.shape[1:]
        return not (value is None or isinstance(value, str | int | float))

    single = all(v.real is None and not (isinstance(v.value, Tensor) and len(v.value) > 1) for v in values.values())
    held = [value for name, value in subject.inputs.items() if name not in values]
    plain = isinstance(subject.model, torch.nn.Module) and not callable(subject.target)
    return subject.rows > 1 and single and plain and not any(map(differs, held))


def score(subject: Subject) -> Tensor | None:
    """f(x') for the target that was explained, everything else held at x, the mean over baselines: (rows, k)."""
    if not subject.baseline or subject.measured.told:
        return subject.measured.before
    found = []
    for which in range(len(subject.baseline)):
        at_reference = subject.pinned().valued(reference(subject, which))
        at_reference.run(gradient=False)
        found.append(at_reference.measured)
    return mean_score(subject, found)


def listed(numbers: Tensor) -> list[Any]:
    """(rows, k) for the receipt: a number for each row, or a list of them where there are several targets."""
    return (numbers[:, 0] if numbers.shape[1] == 1 else numbers).tolist()


def mean_score(subject: Subject, found: Sequence[Measured]) -> Tensor:
    """The mean over baselines of what was found there.

    A classifier's probability goes into the receipt: a neutral baseline leaves it undecided.
    """
    index, probabilities = subject.measured.index, []
    for facts in found:
        if facts.logits is not None and index is not None:
            p = distribution(facts.logits.double()).expand(subject.rows, -1)
            probabilities.append(p.gather(1, index[..., 0].to(p.device)))
    if probabilities:
        mean = torch.stack(probabilities).mean(0)  # (rows, k)
        subject.record.say(baseline_probability=listed(mean))
    scores = [facts.score for facts in found if facts.score is not None]
    return torch.stack(scores).mean(0) if len(scores) > 1 else scores[0]


def referred(subject: Subject, baseline: Any) -> Subject:
    """The subject at x': the same target, each explained input replaced by its baseline.

    It has one row where one serves all: every baseline is a single row, and nothing else goes with the rows.
    """
    given = baseline if isinstance(baseline, dict) else _by_name(subject, baseline)
    pinned = subject.pinned()
    embedded = [name for name, v in given.items() if subject.input_roles.get(name) == "ids" and not _is_ids(v)]
    if subject.at is not None and embedded:
        pinned = _without_at(pinned)
    if _one_for_all(pinned, given):
        pinned = replace(pinned.take(torch.zeros(1, dtype=torch.long, device="cpu")), target=pinned.target)
    inputs, values = dict(pinned.inputs), {}
    for name, value in given.items():
        if name in embedded:
            values.update(_embeddings(pinned, name, value))
        else:
            inputs[name] = _filled(name, value, pinned.inputs[name])
    return replace(pinned, at=subject.at, inputs=inputs, values=values, measured=Measured())


def _without_at(pinned: Subject) -> Subject:
    """The subject as if its inputs were explained, not a module's output: where ids have embeddings to replace."""
    inner = replace(pinned, at=None, roles=pinned.input_roles, values={}, measured=Measured())
    inner.run(gradient=False)
    return replace(inner, values=dict(inner.facts.values))


def _most_neutral(subject: Subject, neutral: Neutral) -> Given:
    """For each row, the candidate at which the model is least decided; which one it was goes into the receipt."""
    given = [_resolved(subject, candidate) for candidate in neutral.candidates]
    found, decided = [], []
    for one in given:
        values = reference(replace(subject, baseline=(one,)))
        there = subject.pinned().valued(values)
        there.run(gradient=False)
        found.append(values)
        decided.append(_decision(there))
    choice = torch.stack(decided).argmin(0)  # (rows,)
    subject.record.say(baseline=[neutral.names[int(i)] for i in choice])
    if subject.at is not None or any_repeated(found[0]):
        return _the_same_for_all(given, choice)
    return {key: _by_row([values[key] for values in found], choice) for key in found[0]}


def _with_an_integral(subject: Subject, given: Default) -> Given:
    """Zero embeddings, and the mean embedding for rows whose score leaves zero in a jump; the receipt says which."""
    zero, mean = given.candidates
    start, end = reference(replace(subject, baseline=(zero,))), subject.pinned().values
    jumps = _jumps(subject.pinned(), start)
    other = _found(subject, mean) if any(jumps) and not any_repeated(end) else None
    subject.record.say(baseline=["mean" if jump and other is not None else "zero" for jump in jumps])
    if other is None:
        return zero
    warn(
        f"{subject.method}: from an embedding of zeros the integral does not converge in {{rows}} (a normalisation "
        "divides by the size of what starts at 0), so the baseline there is the mean embedding. Give baseline=0 to "
        'start at zero all the same, or another one, such as "pad".',
        [subject.row_numbers[row] for row, jump in enumerate(jumps) if jump],
    )
    choice = torch.tensor([int(jump) for jump in jumps], device="cpu")
    return {key: _by_row([start[key], other[key]], choice) for key in end}


def _found(subject: Subject, given: Given) -> dict[str, Tensor] | None:
    """x' by a baseline that may not exist: the table of embeddings is not always to be found."""
    try:
        return reference(replace(subject, baseline=(_resolved(subject, given),)))
    except BaselineError:
        return None


def _jumps(pinned: Subject, start: Mapping[str, Tensor]) -> list[bool]:
    """Whether each row's score has moved next to the start of its line."""
    rows = torch.arange(pinned.rows, device="cpu").repeat_interleave(len(_NEAR))
    alpha = torch.tensor(_NEAR, dtype=torch.float64, device="cpu").repeat(pinned.rows)

    def work(run: Tensor, items: Tensor) -> Tensor:
        at, values = of(alpha, items, 1), {}
        for key, end in pinned.values.items():
            first, last = (t.index_select(0, run.to(t.device)) for t in (start[key], end))
            values[key] = torch.lerp(first, last, at.to(last).view(-1, *[1] * (last.dim() - 1)))
        return pinned.take(run).valued(values).run(gradient=False).score.double().cpu()

    assert pinned.measured.score is not None
    score = pinned.measured.score.double().cpu()  # (rows, k)
    found = score.new_zeros(len(alpha), score.shape[1])
    for items, some in batches(pinned, rows, work):
        found[items[items >= 0]] = some[items >= 0]
    near = found.unflatten(0, (pinned.rows, len(_NEAR)))  # (rows, points, k)
    first, moved = near[:, 0], (near - near[:, :1]).abs().amax(1)
    return (moved > _MOVED * score_scale(score, first)).any(1).tolist()


def _the_same_for_all(given: list[Given], choice: Tensor) -> Given:
    if len(set(choice.tolist())) > 1:
        raise BaselineError(
            "The most neutral baseline differs from row to row, and one must serve all with at= and for ids that enter "
            f"two embeddings.\n  The rows took {choice.tolist()} of the candidates: explain them apart, or name one."
        )
    return given[int(choice[0])]


def _by_row(values: list[Tensor], choice: Tensor) -> Tensor:
    return torch.stack([values[int(i)][row] for row, i in enumerate(choice)])


def _decision(subject: Subject) -> Tensor:
    """How decided the model is, per row: the divergence of its classes from evenness, or the size of its score."""
    logits = subject.measured.logits
    if logits is None:
        assert subject.measured.score is not None
        return subject.measured.score.abs().amax(1)
    p = distribution(logits.double())
    return (p * (p + 1e-300).log()).sum(1) + math.log(p.shape[1])


def _one_for_all(subject: Subject, given: Given) -> bool:
    def per_row(value: Any) -> bool:  # or perhaps: along another axis, in a list
        if isinstance(value, Tensor):
            return subject.rows in value.shape
        return not (value is None or isinstance(value, str | int | float) or callable(value))

    single = all(
        not isinstance(value, Tensor) or value.dim() < subject.inputs[name].dim() or len(value) == 1
        for name, value in given.items()
        if subject.roles.get(name) != "ids" or _is_ids(value)
    )
    others = any(per_row(value) for name, value in subject.inputs.items() if name not in given)
    floats = any(subject.roles.get(n) == "ids" and isinstance(v, Tensor) and not _is_ids(v) for n, v in given.items())
    return subject.rows > 1 and single and not others and not floats and not callable(subject.target)


def _by_name(subject: Subject, baseline: Any) -> dict[str, Any]:
    names = [name for name, role in subject.input_roles.items() if role != "fixed"] or list(subject.inputs)[:1]
    if isinstance(baseline, Mapping):
        for name in baseline:
            if name not in subject.inputs:
                raise BaselineError(f"The baseline names {name!r}, which is no input. {did_you_mean(name, names)}")
        return dict(baseline)
    if isinstance(baseline, tuple):
        if len(baseline) != len(names):
            raise BaselineError(
                f"The baseline has {len(baseline)} parts, and {len(names)} inputs are explained.\n"
                "  Give one for each, or a dict by input name."
            )
        return dict(zip(names, baseline, strict=True))
    return dict.fromkeys(names, baseline)


def _is_ids(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_floating_point()


def _embeddings(pinned: Subject, name: str, value: Any) -> dict[str, Tensor]:
    """A number or a float tensor stands for the embeddings themselves."""
    keys = [key for key in pinned.values if input_of(key) == name]
    return {key: _filled(name, value, pinned.values[key]) for key in keys}


def _filled(name: str, value: Any, x: Tensor) -> Tensor:
    if isinstance(value, Tensor) and value.dim() == 0:
        value = value.item()
    if isinstance(value, Real) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise BaselineError(f"The baseline for {name!r} is {value}.\n  Give a finite number.")
        if not x.is_floating_point():
            raise BaselineError(
                f"The baseline for {name!r} is {value}, and these ids are not explained here (at= or wrt= says so).\n"
                "  Give the baseline as ids."
            )
        return torch.full_like(x, float(value))
    if not isinstance(value, Tensor):
        raise BaselineError(
            f"The baseline for {name!r} is {value!r}.\n  Give a number, a tensor like the input, a name "
            f"({', '.join(named)}), a dict by input name, or a list of these."
        )
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        raise BaselineError(f"The baseline for {name!r} holds numbers that are not finite.\n  Clean it first.")
    one_row = value.shape == x.shape[1:]
    try:
        fits = one_row or (value.dim() == x.dim() and len(value) in (1, len(x)) and value.shape[1:] == x.shape[1:])
        if not fits:
            raise RuntimeError
        return value.to(x).expand_as(x)
    except RuntimeError:
        raise BaselineError(
            f"The baseline for {name!r} has the shape {tuple(value.shape)}, and the input is {tuple(x.shape)}.\n"
            "  Give one of the input's shape, or one row of it for all rows."
        ) from None
