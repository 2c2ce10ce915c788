"""What a module gives for some inputs, outside of any explanation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from whence.adapters.tensors import adapt
from whence.engine.places import place
from whence.engine.scope import scope
from whence.subject.modules import canonical
from whence.subject.up_to import UpTo, run_alone


def activations_of(model: Any, inputs: Any, at: Any) -> Tensor | dict[str, Tensor]:
    """The module's tensor, or its tensors by name, rows first; the model is left as it was."""
    subject = adapt(model, inputs, method="activations")
    written = canonical(subject.root, at)
    assert subject.root is not None
    up_to = UpTo(subject.model, subject.root, place(written))
    with scope(subject.root):
        up_to.check(run_alone(replace(subject, model=up_to.counting())))
        found = up_to.tensors(run_alone(replace(subject, model=up_to)))
    found = {name: tensor.detach().clone() for name, tensor in found.items()}
    return next(iter(found.values())) if len(found) == 1 else found
