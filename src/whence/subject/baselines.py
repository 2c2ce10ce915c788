"""Baselines: one type from what the user gives to x', in three states.

parse(subject, given)      -> Baseline         by input name and checked; may still hold names such as "blur"
baseline.resolve(subject)  -> Baseline         numbers and tensors in the place of names
baseline.values(subject)   -> {key: tensor}    x' itself, one tensor in the place of each explained value
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from whence.engine.leaves import AT
from whence.errors import BaselineError, did_you_mean
from whence.subject.baseline_choices import integrable, most_neutral
from whence.subject.masks import real_units
from whence.subject.named_baselines import Neutral, named
from whence.subject.record import Measured
from whence.subject.subject import Subject
from whence.util.keys import input_of


@dataclass(frozen=True, eq=False)
class Baseline:
    """A baseline by input name: each a number, a tensor or, until it is resolved, a name of the registry.

    Or, until it is resolved, several candidates, of which each row takes one.
    """

    by_input: Mapping[str, Any] = field(default_factory=dict)
    candidates: tuple[Baseline, ...] = ()
    choose: Callable[[Subject, Sequence[Baseline]], Mapping[str, Any]] | None = None  # of the candidates, row by row

    def resolve(self, subject: Subject) -> Baseline:
        """The baseline with numbers and tensors in the place of names and candidates."""
        if self.choose is not None:
            return Baseline(self.choose(subject, self.candidates))
        return Baseline(
            {
                name: named[value].function(subject, name) if isinstance(value, str) else value
                for name, value in self.by_input.items()
            }
        )

    def values(self, subject: Subject) -> dict[str, Tensor]:
        """x': what stands in the place of each explained value, like `subject.pinned().values`; padding stays."""
        pinned = subject.pinned()
        inside = {key: _filled(key, self.by_input[key], x) for key, x in pinned.values.items() if key in self._inside}
        x0 = self._without_a_pass(pinned) if subject.at is None else inside
        if x0 is None or len(x0) < len(pinned.values):
            replaced = self.as_inputs_of(subject)
            replaced.run(gradient=False)
            x0 = {**replaced.measured.values, **inside}
        values = {}
        for key, x in pinned.values.items():
            real = real_units(subject, key, x.shape)
            mask = None if real is None else real.view(*real.shape, *[1] * (x.dim() - 2)).to(x.device)
            other = x0[key].expand_as(x)
            values[key] = other if mask is None else torch.where(mask, other, x)
        return values

    @property
    def _inside(self) -> list[str]:
        """The keys of what is given for a module's own values."""
        return [name for name in self.by_input if is_inside(name)]

    def as_inputs_of(self, subject: Subject) -> Subject:
        """The subject with each explained input replaced by its baseline, and the same target.

        It has one row where one serves all: every baseline is a single row, and no other input has one entry per row.
        """
        if self._inside:
            by_input = {name: value for name, value in self.by_input.items() if name not in self._inside}
            return replace(self, by_input=by_input).as_inputs_of(subject)
        pinned = subject.pinned()
        embedded = [n for n, v in self.by_input.items() if subject.input_roles.get(n) == "ids" and not is_ids(v)]
        if subject.at is not None and embedded:
            pinned = _without_at(pinned)
        if self._one_row_serves_all(pinned):
            pinned = replace(pinned.take(torch.zeros(1, dtype=torch.long, device="cpu")), target=pinned.target)
        inputs, values = dict(pinned.inputs), {}
        for name, value in self.by_input.items():
            if name in embedded:  # a number or a float tensor stands for the embeddings themselves
                keys = [key for key in pinned.values if input_of(key) == name]
                values.update({key: _filled(name, value, pinned.values[key]) for key in keys})
            elif is_number(value) and subject.input_roles.get(name) != "value" and _is_whole(pinned.inputs[name]):
                raise BaselineError(
                    f"The baseline for {name!r} is {value}, but its ids are not explained here (because of at= or "
                    "wrt=).\n  Give the baseline as ids."
                )
            else:
                inputs[name] = _filled(name, value, pinned.inputs[name])
        return replace(pinned, at=subject.at, inputs=inputs, values=values, measured=Measured())

    def map(self, function: Callable[[Any], Any]) -> Baseline:
        """The baseline with a function applied to the value of each input."""
        by_input = {name: function(value) for name, value in self.by_input.items()}
        return replace(self, by_input=by_input, candidates=tuple(one.map(function) for one in self.candidates))

    def _without_a_pass(self, pinned: Subject) -> dict[str, Tensor] | None:
        """x' where it can be written down: anything but ids, whose embeddings only the model knows."""
        if any(name not in pinned.roles for name in self.by_input):
            return None
        values = {}
        for key, x in pinned.values.items():
            name = input_of(key)
            value = self.by_input.get(name)
            if pinned.roles.get(name) == "ids" and is_ids(value):
                return None
            values[key] = _filled(name, value, x) if name in self.by_input else x
        return values

    def _one_row_serves_all(self, subject: Subject) -> bool:
        """Whether x' is the same in every row, and nothing else differs between the rows."""
        if subject.rows < 2 or callable(subject.target):
            return False
        for name, value in self.by_input.items():
            embeddings = subject.roles.get(name) == "ids" and not is_ids(value)
            if isinstance(value, Tensor) and (
                embeddings or not (value.dim() < subject.inputs[name].dim() or len(value) == 1)
            ):
                return False
        others = [value for name, value in subject.inputs.items() if name not in self.by_input]
        return not any(_may_be_per_row(value, subject.rows) for value in others)


# ---- from what the user gives ----


def parse(subject: Subject, given: Any, rest: float | None = None) -> tuple[Baseline, ...]:
    """A baseline as the user gave it, by input and checked; several if it is a list, none if it is None.

    `rest` is for explained inputs that a dict leaves out; without it they stay as they are.
    """
    if given is None:
        return ()
    if isinstance(given, list):
        if not given:
            raise BaselineError("The list of baselines is empty.\n  Give at least one.")
        return tuple(one for item in given for one in parse(subject, item, rest))
    if isinstance(given, Neutral):
        if any(candidate is None or isinstance(candidate, list | Neutral) for candidate in given.candidates):
            raise BaselineError(f"neutral{given.names}: give single baselines as candidates, not lists.")
        candidates = tuple(_parsed(subject, candidate, rest) for candidate in given.candidates)
        return (Baseline(candidates=candidates, choose=partial(most_neutral, names=given.names)),)
    return (_parsed(subject, given, rest),)


def default(subject: Subject, facts: Mapping[str, Any]) -> tuple[Baseline, ...]:
    """What a method with these facts takes where the user gave no baseline: 0.

    For integrals over ids, rows in which none converges from an embedding of zeros take the mean embedding.
    """
    zero = _parsed(subject, 0.0)
    ids = [name for name, role in subject.roles.items() if role == "ids"]
    if not (facts.get("integral") and ids and subject.at is None):
        return (zero,)
    mean = Baseline({**zero.by_input, **dict.fromkeys(ids, "mean")})
    return (Baseline(candidates=(zero, mean), choose=integrable),)


def called(subject: Subject, given: Any) -> Any:
    """A baseline with what its functions give: one gets its input, or all explained inputs in the user's form."""
    if isinstance(given, Mapping):
        return {n: v(subject.inputs[n]) if callable(v) and n in subject.inputs else v for n, v in given.items()}
    names = _explained(subject)
    if isinstance(given, tuple) and len(given) == len(names):
        return tuple(v(subject.inputs[n]) if callable(v) else v for n, v in zip(names, given, strict=True))
    if isinstance(given, list):
        return [called(subject, item) for item in given]
    if not callable(given):
        return given
    whole = {name: subject.inputs[name] for name in names}
    form = whole if subject.form == "dict" else tuple(whole.values())
    return given(whole[names[0]] if len(names) == 1 else form) if signature(given).parameters else given()


def background(given: Any) -> Any:
    """A tensor of references, or a dict or tuple of such, as a list of baselines of one row each."""
    if isinstance(given, Tensor):
        return [given[i : i + 1] for i in range(len(given))] if given.dim() > 1 else given
    tensors = given.values() if isinstance(given, Mapping) else given if isinstance(given, tuple) else ()
    counts = {len(t) for t in tensors if isinstance(t, Tensor) and t.dim() > 1}
    if len(counts) != 1 or not all(isinstance(t, Tensor) for t in tensors):
        return given
    if isinstance(given, Mapping):
        return [{name: t[i : i + 1] for name, t in given.items()} for i in range(counts.pop())]
    return [tuple(t[i : i + 1] for t in given) for i in range(counts.pop())]


def _parsed(subject: Subject, given: Any, rest: float | None = None) -> Baseline:
    by_input = _by_input(subject, given)
    for name, value in by_input.items():
        if is_inside(name) and isinstance(value, str):
            raise BaselineError(
                f"The baseline for {name!r} is {value!r}.\n  Give a number or a tensor like its values."
            )
    if rest is not None:
        by_input = {**dict.fromkeys(subject.input_roles, rest), **by_input}
    for name, value in by_input.items():
        x = subject.inputs.get(name)
        if (
            isinstance(value, Tensor)
            and isinstance(x, Tensor)
            and (subject.input_roles.get(name) != "ids" or is_ids(value))
        ):
            by_input[name] = value.unsqueeze(0) if 0 < value.dim() == x.dim() - 1 else value  # one row for all
        if isinstance(value, str) and value not in named:
            raise BaselineError(f"There is no baseline {value!r}. {did_you_mean(value, named)}")
        if is_inside(name) and isinstance(value, Tensor):
            continue  # its shape is known when the module has run
        if isinstance(value, Tensor) and (subject.input_roles.get(name) != "ids" or is_ids(value)):
            _filled(name, value, subject.inputs[name])
        elif not isinstance(value, str | Tensor):
            flags = isinstance(x, Tensor) and x.dtype == torch.bool
            _filled(name, value, torch.zeros((), dtype=torch.bool if flags else torch.float32, device="cpu"))
    return Baseline(by_input)


def _by_input(subject: Subject, given: Any) -> dict[str, Any]:
    names = _explained(subject)
    if isinstance(given, Mapping):
        for name in given:
            if name not in subject.inputs and not (subject.at is not None and is_inside(name)):
                raise BaselineError(f"The baseline names {name!r}, which is not an input. {did_you_mean(name, names)}")
        return dict(given)
    if isinstance(given, tuple):
        if len(given) != len(names):
            raise BaselineError(
                f"The baseline has {len(given)} parts, but {len(names)} inputs are explained.\n"
                "  Give one for each, or a dict by input name."
            )
        return dict(zip(names, given, strict=True))
    return dict.fromkeys(names, given)


def _explained(subject: Subject) -> list[str]:
    """The names of the inputs that a baseline is for."""
    return [name for name, role in subject.input_roles.items() if role != "fixed"] or list(subject.inputs)[:1]


# ---- values ----


def is_inside(name: str) -> bool:
    """Whether a baseline's part is for the module that `at=` names: "at", or "at.NAME" where it has several tensors."""
    return name.partition(".")[0] == AT


def is_ids(value: Any) -> bool:
    """Whether a baseline is one of ids: a tensor of integers."""
    return isinstance(value, Tensor) and not value.is_floating_point()


def is_number(value: Any) -> bool:
    """Whether a baseline is one number for all elements."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_whole(x: Any) -> bool:
    return isinstance(x, Tensor) and not x.is_floating_point()


def _filled(name: str, value: Any, x: Tensor) -> Tensor:
    """A number or a tensor, as a tensor like x."""
    if isinstance(value, Tensor) and value.dim() == 0:
        value = value.item()
    if is_number(value) or (isinstance(value, bool) and x.dtype == torch.bool):
        if not math.isfinite(value):
            raise BaselineError(f"The baseline for {name!r} is {value}.\n  Give a finite number.")
        if not x.is_floating_point():
            return _whole(name, torch.full(x.shape, float(value), dtype=torch.double, device=x.device), x)
        return torch.full_like(x, float(value))
    if not isinstance(value, Tensor):
        raise BaselineError(
            f"The baseline for {name!r} is {value!r}.\n  Give a number, a tensor like the input, a name "
            f"({', '.join(named)}), a function of the input, a dict by input name, or a list of these."
        )
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        raise BaselineError(f"The baseline for {name!r} has values that are not finite.\n  Replace them first.")
    full = x.shape if value.dim() == x.dim() else x.shape[1:]  # one row for all
    if value.dim() != len(full) or any(size not in (1, n) for size, n in zip(value.shape, full, strict=True)):
        raise BaselineError(
            f"The baseline for {name!r} has the shape {tuple(value.shape)}, but the input has {tuple(x.shape)}.\n"
            "  Give a tensor of the input's shape, or one row of it for all rows; an axis of length 1 serves all its "
            "places. Several rows to average over are baseline=list(rows) (expected_gradients), or a background "
            "(deepshap)."
        )
    return (value.to(x) if x.is_floating_point() else _whole(name, value.to(x.device), x)).expand_as(x)


def _whole(name: str, value: Tensor, x: Tensor) -> Tensor:
    """A baseline in the dtype of integers or booleans, which has to hold it."""
    held = value.to(x.dtype)
    if bool((held.to(value.dtype) != value).any()):
        raise BaselineError(
            f"The baseline for {name!r} does not fit its dtype {x.dtype}.\n"
            "  Give values that it can hold, or cast the input first (x.float())."
        )
    return held


def _may_be_per_row(value: Any, rows: int) -> bool:
    """Whether an input may have one entry per row, along whichever axis or in whatever container."""
    if isinstance(value, Tensor):
        return rows in value.shape
    return not (value is None or isinstance(value, str | int | float) or callable(value))


def _without_at(pinned: Subject) -> Subject:
    """The subject as if its inputs were explained, not a module's output: where ids have embeddings to replace."""
    inner = replace(pinned, at=None, roles=pinned.input_roles, values={}, measured=Measured())
    inner.run(gradient=False)
    return replace(inner, values=dict(inner.measured.values))
