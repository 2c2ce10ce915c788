"""Baselines: from what the user gives to values in the place of the explained ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from whence.errors import BaselineError, did_you_mean
from whence.subject import Facts, Subject


def read(subject: Subject, baseline: Any) -> dict[str, Any] | None:
    """A baseline as the user gave it, by input and checked; what has one entry per row will go with its row."""
    if baseline is None:
        return None
    given = _by_name(subject, baseline)
    for name, value in given.items():
        if isinstance(value, Tensor) and (subject.roles.get(name) != "ids" or _is_ids(value)):
            _filled(name, value, subject.inputs[name])
    return given


def reference(subject: Subject) -> dict[str, Tensor]:
    """x': what stands in the place of each explained value, like `subject.pinned().values`."""
    pinned, at_reference = subject.pinned(), referred(subject)
    at_reference.run(gradient=False)
    found = at_reference.facts.values
    return {key: found[key].expand_as(value) for key, value in pinned.values.items()}


def score(subject: Subject) -> Tensor | None:
    """f(x') for the target that was explained, everything else held at x: (rows, k)."""
    if subject.baseline is None:
        return None
    at_reference = subject.pinned().valued(reference(subject))
    at_reference.run(gradient=False)
    return at_reference.facts.score


def referred(subject: Subject, baseline: Any = None) -> Subject:
    """The subject at x': the same target, each explained input replaced by its baseline.

    It has one row where one serves all: every baseline is a single row, and nothing else goes with the rows.
    """
    given = read(subject, baseline) if baseline is not None else subject.baseline
    assert given is not None
    pinned = subject.pinned()
    if _one_for_all(subject, given):
        pinned = replace(pinned.take(torch.zeros(1, dtype=torch.long)), target=pinned.target)
    inputs, values = dict(pinned.inputs), {}
    for name, value in given.items():
        if subject.roles.get(name) == "ids" and not _is_ids(value):
            values.update(_embeddings(pinned, name, value))
        else:
            inputs[name] = _filled(name, value, pinned.inputs[name])
    return replace(pinned, inputs=inputs, values=values, facts=Facts())


def _one_for_all(subject: Subject, given: Mapping[str, Any]) -> bool:
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
    names = [name for name, role in subject.roles.items() if role != "fixed"] or list(subject.inputs)[:1]
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
    keys = [key for key in pinned.values if key.partition("#")[0] == name]
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
            f"The baseline for {name!r} is {value!r}.\n  Give a number, a tensor like the input, or a dict by name."
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
