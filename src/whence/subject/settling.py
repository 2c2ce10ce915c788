"""What only a run can tell of a subject whose units are removed: integers that are values, one score for all rows."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from whence.errors import IndependentError, TargetError
from whence.subject.record import Measured
from whence.subject.subject import Role, Subject
from whence.subject.targets import OneForAll
from whence.util.keys import inputs_of


def settled(subject: Subject) -> Subject:
    """The subject with integers that enter no embedding as values, and with one score for all rows if that is so.

    Its first pass is kept. Where the rows are split, only what integers are is found out, by the first part.
    """
    ids = [name for name, role in subject.roles.items() if role == "ids"]
    part = next(subject.split(subject.batch_size))
    if part.rows < subject.rows:
        return _with_values(subject, _met(part) if ids else [])
    try:
        met = _met(subject)
    except OneForAll:
        subject = _together(subject)
        met = _met(subject)
    return _with_values(subject, met)


def _met(subject: Subject) -> list[str]:
    """The names of the explained inputs that were met where they count."""
    try:
        done = subject.run(gradient=False, marks=True)
    except IndependentError:
        return []
    met = inputs_of(done.leaves)
    if done.flow.leaves.ids.aside:
        names = ", ".join(repr(name) for name in met if subject.roles.get(name) == "ids")
        subject.record.overall["ids"] = (
            f"{names}: replaced where they enter an embedding; what else the model does with them stays as it is"
        )
    return met


def _with_values(subject: Subject, met: list[str]) -> Subject:
    values: dict[str, Role] = {n: "value" for n, role in subject.roles.items() if role == "ids" and n not in met}
    if not values or subject.at is not None:
        return subject
    subject.record.overall["integers"] = f"{', '.join(map(repr, values))}: values, because they enter no embedding"
    roles = {**subject.roles, **values}
    return replace(subject, roles=roles, input_roles={**subject.input_roles, **values}, measured=Measured())


def _together(subject: Subject) -> Subject:
    """The subject with one score for all rows, which needs one target."""
    target = subject.target
    if isinstance(target, Tensor):
        if bool((target != target[:1]).any()):
            raise TargetError(
                "The model gives one score for all rows, but the target differs from row to row.\n"
                "  Give one target, or a model with one score per row."
            )
        target = target[:1]
    return replace(subject, whole=True, target=target, measured=Measured())
