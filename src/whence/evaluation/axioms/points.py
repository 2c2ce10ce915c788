"""The user's model and rows in the one form in which every property is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from whence.adapters.reachable import modules_behind
from whence.adapters.tensors import adapt
from whence.adapters.wrapped import Wrapped
from whence.engine.custom_functions import suspended
from whence.engine.scope import scope
from whence.errors import BaselineError, InputError, ModelError, ParameterError, TargetError
from whence.evaluation.axioms.functions import OTHER, TARGET, Scored
from whence.subject import Subject, baselines
from whence.subject.logits import find_logits
from whence.subject.masks import has_tokens, real_units
from whence.subject.targets import read_target, several

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Points:
    """Inputs with their baselines, (points, units, depth), and the user's row that each was made from."""

    x: Tensor
    baseline: Tensor
    row: Tensor  # (points,)

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, which: Any) -> Points:
        return Points(self.x[which], self.baseline[which], self.row[which])


def together(parts: list[Points]) -> Points:
    """All of these points."""
    return Points(
        torch.cat([p.x for p in parts]), torch.cat([p.baseline for p in parts]), torch.cat([p.row for p in parts])
    )


@dataclass(frozen=True, eq=False)
class Probe:
    """A score as a function of one tensor of units, and the rows to measure at."""

    score: Scored
    other: Scored | None  # the score of another target of the same model
    subject: Subject
    name: str  # of the explained tensor
    shape: torch.Size  # of one row of it
    kind: str  # "tokens" (n, hidden), "image" (channels, height, width), "plain"
    rows: Points
    held: Mapping[str, Any]
    goes: frozenset[str]  # held inputs with one entry per row
    real: Tensor | None  # (rows, units): no padding
    numbers: tuple[int, ...]  # of the rows, as the user counts them
    features: int  # to look at, at most
    equivalents: tuple[Scored, ...]
    chunk: int  # points in one pass, at most
    known: dict[str, Any] = field(default_factory=dict)  # what was found out of the model, whatever the method

    def once(self, name: str, find: Callable[[], T]) -> T:
        """What `find` gives, found out once."""
        if name not in self.known:
            self.known[name] = find()
        found: T = self.known[name]
        return found

    # ---- units ----

    def units(self, values: Tensor) -> Tensor:
        """Anything like the input as (points, units, depth)."""
        if self.kind == "tokens":
            return values if values.dim() == 3 else values[..., None]
        if self.kind == "image" and values.dim() == 4:
            return values.flatten(2).transpose(1, 2)
        return values.reshape(len(values), -1, 1)

    def tensor(self, units: Tensor) -> Tensor:
        """Units as the model takes them."""
        flat = units.transpose(1, 2) if self.kind == "image" else units
        return flat.reshape(len(units), *self.shape)

    def swapped(self, x: Tensor, order: Tensor) -> Tensor:
        """The model's input with its units in another order, (points, units)."""
        if self.kind == "tokens":
            return x.gather(1, order[..., None].expand_as(x))
        flat = x.reshape(len(x), self.shape[0] if self.kind == "image" else 1, -1)  # (points, depth, units)
        return flat.gather(2, order[:, None].expand_as(flat)).reshape(x.shape)

    def chosen(self, row: int) -> list[int]:
        """The units of a row that are looked at: all, or evenly many of them."""
        there = range(self.rows.x.shape[1]) if self.real is None else self.real[row].nonzero().flatten().tolist()
        most = min(self.features, len(there))
        return [there[round(k * (len(there) - 1) / max(most - 1, 1))] for k in range(most)]

    def place(self, unit: int) -> Any:
        """A unit as the user would index it in a row."""
        if self.kind == "tokens" or len(self.shape) == 1:
            return unit
        shape = self.shape[1:] if self.kind == "image" else self.shape
        return tuple(int(i) for i in torch.unravel_index(torch.tensor(unit, device="cpu"), shape))

    # ---- asking ----

    def inputs(self, points: Points, extra: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
        """The inputs of a function of this probe at these points."""
        held = {n: v.index_select(0, points.row.to(v.device)) if n in self.goes else v for n, v in self.held.items()}
        return {self.name: self.tensor(points.x), **held, **(extra or {})}

    def f(self, points: Points, function: nn.Module | None = None) -> Tensor:
        """The function at these points, (points,) in float64."""
        function = self.score if function is None else function
        parts = torch.arange(len(points), device=points.row.device).split(self.chunk)
        with suspended(), scope(function), torch.no_grad():
            return torch.cat([function(**self.inputs(points[part]))[:, 0].double() for part in parts])

    def at_baseline(self, points: Points) -> Points:
        return replace(points, x=points.baseline)


def prepare(
    model: Any, inputs: Any, *, baseline: Any, target: Any, wrt: Any, output: Any, seed: int, rows: int, features: int,
    equivalents: Any, chunk: int,
) -> Probe:  # fmt: skip
    """The probe of the user's model and rows."""
    numbers: list[int] | None = None
    if isinstance(model, Wrapped):
        requests = model.requests(inputs, target, None, True)
        if len(requests) > 1:
            raise InputError(
                f"These rows take {len(requests)} separate passes, but properties are measured on rows of one pass.\n"
                "  Give one of the rows, or rows that fit into one batch."
            )
        asked = requests[0]
        model, inputs, target, numbers = asked.model, asked.inputs, asked.target, asked.rows
        baseline = asked.baseline(baseline)
    subject = _subject(model, inputs, baseline, target, wrt, output, seed)
    subject = subject.take(torch.arange(min(rows, subject.rows), device="cpu")) if subject.rows > rows else subject
    with suspended(), scope(subject.root, *modules_behind(subject.target).values()):
        subject = subject.resolved()
        pinned = subject.pinned()
        reference = subject.baselines[0].values(subject)
        score, sizes = pinned.measured.score, None if callable(pinned.target) else _sizes(pinned)
    return _case(pinned, reference, sizes, score, numbers, features, equivalents, chunk)


def _subject(model: Any, inputs: Any, baseline: Any, target: Any, wrt: Any, output: Any, seed: int) -> Subject:
    if several(target):
        raise TargetError("Properties are measured of one score per row.\n  Give one target per row.")
    subject = adapt(model, inputs, method="axioms", wrt=wrt)
    subject = replace(subject, target=read_target(target, subject.rows), output=output, seeds=(seed,) * subject.rows)
    given = baselines.parse(subject, 0.0 if baseline is None else baseline, 0.0)
    if len(given) > 1:
        raise BaselineError(f"Properties are measured against one baseline, and {len(given)} were given.\n  Give one.")
    return replace(subject, baselines=given)


def _sizes(pinned: Subject) -> tuple[int, ...]:
    """The shape of one row of the model's output."""
    with torch.no_grad():
        named = dict(pinned.inputs)
        found = pinned.model(**named) if pinned.form == "dict" else pinned.model(*named.values())
    return tuple(find_logits(found).shape[1:])


def _case(
    pinned: Subject, reference: Mapping[str, Tensor], sizes: tuple[int, ...] | None, score: Tensor | None,
    numbers: list[int] | None, features: int, equivalents: Any, chunk: int,
) -> Probe:  # fmt: skip
    values = {key: value.detach() for key, value in pinned.values.items()}
    doubled = [key for key in values if key not in pinned.inputs]
    if doubled:
        raise InputError(
            f"{doubled[0].partition('#')[0]!r} enters several embeddings.\n  Name another input with wrt=."
        )
    key = next(iter(values))
    first, alone = values[key], len(values) == 1
    tokens = alone and (pinned.roles[key] == "ids" or has_tokens(pinned, key, first.shape))
    name = ("inputs_embeds" if tokens else key) if alone else "whence_input"
    x, x0 = (_flat(v, alone) for v in (values, {k: reference[k].detach() for k in values}))
    kind = "tokens" if tokens else "image" if alone and x.dim() == 4 else "plain"
    held: dict[str, Any] = {n: v for n, v in pinned.inputs.items() if pinned.roles.get(n) != "value"}
    goes = {n for n in held if n in pinned.per_row_inputs}
    function, other = Scored(pinned, name), None
    if sizes is not None and isinstance(pinned.target, Tensor):
        index = pinned.target
        held[TARGET], goes = index, {*goes, TARGET}
        if sizes and sizes[-1] > 1:
            held[OTHER], goes = index.clone(), {*goes, OTHER}
            held[OTHER][..., -1] = (index[..., -1] + 1) % sizes[-1]
            other = Scored(pinned, name, OTHER)
    equal = tuple(_equivalent(pinned, name, one) for one in equivalents)
    row = torch.arange(len(x), device=x.device)
    probe = Probe(
        function, other, pinned, name, x.shape[1:], kind, Points(x, x0, row), held, frozenset(goes),
        real_units(pinned, key, first.shape) if alone else None, tuple(numbers or pinned.row_numbers), features,
        equal, chunk,
    )  # fmt: skip
    probe = replace(probe, rows=Points(probe.units(x), probe.units(x0), row))
    if score is not None and not torch.allclose(probe.f(probe.rows), score[:, 0].double(), rtol=1e-4, atol=1e-5):
        raise ModelError(
            f"The model gives other scores when {key!r} is put in place of its ids' embeddings.\n"
            "  Give the embeddings themselves (inputs_embeds=), or a function of them."
        )
    return probe


def _equivalent(pinned: Subject, name: str, model: Any) -> Scored:
    given: Any = tuple(pinned.inputs.values()) if pinned.form == "tuple" else pinned.inputs
    given = next(iter(pinned.inputs.values())) if pinned.form == "tensor" else given
    if not callable(model):
        raise ParameterError(f"equivalents= holds {type(model).__name__}.\n  Give models that compute the same scores.")
    found = adapt(model, given, method="axioms", wrt=list(pinned.roles))
    return Scored(replace(pinned, model=found.model, root=found.root), name)


def _flat(values: Mapping[str, Tensor], alone: bool) -> Tensor:
    return next(iter(values.values())) if alone else torch.cat([v.reshape(len(v), -1) for v in values.values()], 1)
