"""What can be wrong with a finished pass, and the errors that say so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.engine.flow import Flow
from whence.engine.places import place
from whence.errors import BaselineError, IndependentError, InputError, ModelError, NoAttention, NoRule
from whence.util.stats import all_finite

if TYPE_CHECKING:
    from whence.subject.subject import Subject


def check_pass(subject: Subject, flow: Flow, score: Tensor, seen: bool) -> None:
    """An error that says what to do, if nothing can be explained by this pass; `seen` if live ops were taken down."""
    leaves = flow.leaves
    if subject.at is not None:
        _check_module(subject, flow)
    if not all_finite(score):
        row = int((~torch.isfinite(score)).any(1).nonzero()[0])
        if flow.records:
            raise BaselineError(
                f"The model's score at the baseline is {score[row].tolist()} for row {row}.\n"
                "  Give another baseline=, at which the model has a finite score."
            )
        raise ModelError(
            f"The model's score is {score[row].tolist()} for row {row}.\n"
            "  Check the weights and this row; an explanation needs a finite score."
        )
    if not leaves.tensors:
        raise _no_embedding(subject)
    if subject.refuse and flow.log.unseen and flow.modifies:
        node, path = next(iter(flow.log.unseen))
        raise NoRule(
            f"{subject.method} has no rule for {node!r}, which ran where the engine cannot see "
            f"(before {path or 'the output'}).\n"
            '  Replace it by plain ops, or drop unruled="error" to take the derivative.'
        )
    if subject.needs_attention and seen and not flow.captures.attention:  # nothing is met where nothing is live
        hidden = [node for node, _ in flow.log.unseen]
        if hidden:
            raise NoAttention(
                f"{subject.method} reads attention, but this model has none that can be seen: part of it runs inside "
                f"{hidden[0]}, where the engine cannot look.\n  Choose another method, such as occlusion."
            )
        raise NoAttention(
            f"{subject.method} reads attention, but this model has none: no softmax multiplies anything.\n"
            "  Choose a method that works on any model, such as gradient or guided_backprop."
        )


def _check_module(subject: Subject, flow: Flow) -> None:
    """An error if the module that is explained did not run as it was said, or has no tensor with the rows first."""
    leaves, where = flow.leaves, flow.leaves.place
    if not leaves.tensors and leaves.calls >= (where.call or 1):
        does = "gets" if where.side == "input" else "gives"
        raise InputError(f"at={subject.at!r}: this module {does} no floating tensor.\n  Name another one.")
    if not leaves.tensors:
        raise InputError(
            f"at={subject.at!r}: the module {where.path!r} ran {leaves.calls} times in this forward pass.\n"
            "  Name a module that runs, and a call that happens (the first one is @1)."
        )
    if where.call is None and leaves.calls > 1:
        raise InputError(
            f"at={subject.at!r}: this module runs {leaves.calls} times in one forward pass.\n"
            f"  Say which call is meant: {where.calls(leaves.calls, 'at=')}."
        )
    leaf = next(iter(leaves.tensors.values()))
    if leaf.shape[:1] != (subject.rows,):
        raise InputError(
            f"at={subject.at!r}: this module's {where.side} is {tuple(leaf.shape)}, but its first dimension must be "
            f"the {subject.rows} rows.\n  Name a module whose {where.side} keeps the rows first."
        )


def _no_embedding(subject: Subject) -> IndependentError:
    """The error for a pass in which no explained value was met: ids that enter no embedding, if there are ids."""
    names = [name for name, role in subject.roles.items() if role == "ids"]
    if not names:
        return independent(subject)
    kinds = " and ".join(f"{name!r} ({str(subject.inputs[name].dtype).removeprefix('torch.')})" for name in names)
    return IndependentError(
        f"The input {kinds} holds integers, which have no gradient, and they enter no embedding.\n"
        "  Cast features to floating point first (x.float()), or choose a method that removes units (leave_one_out, "
        "shapley, …), which takes them as values. Token ids are explained where they index an embedding, as they are "
        "or copied, not after arithmetic. To explain another input, name it with wrt=."
    )


def _of_module(at: str) -> str:
    where = place(at)
    return f"the {where.side} of {at.removesuffix('@input')!r}"


def independent(subject: Subject) -> IndependentError:
    """The error for a score that does not depend on what is explained."""
    names = [name for name, role in subject.roles.items() if role != "fixed"]
    what = _of_module(subject.at) if subject.at else " and ".join(map(repr, names)) or "the input"
    return IndependentError(
        f"The explained score does not depend on {what} through any differentiable op.\n"
        "  Look for detach(), no_grad(), .data, .item(), arg-max or integer arithmetic on the way, "
        "or name another input with wrt=."
    )
