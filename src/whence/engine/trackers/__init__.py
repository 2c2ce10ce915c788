"""Trackers: facts about values that a pass follows from op to op.

Each op on live tensors is one `Op`. The mode hands it to every tracker that the pass asked for, before and after it
runs; what a tracker knows of a tensor is kept in `store`. A new fact about values is one file here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from whence.engine.call import Call, Rule
    from whence.engine.log import Step

NOT_RUN: Final = object()  # what `Tracker.run` gives for an op that the mode itself is to run


@dataclass(slots=True, eq=False)
class Op:
    """One op on live tensors: what it is about to do, and, once it has run, what came of it."""

    name: str  # its spelling, such as "addmm"
    family: str
    path: str  # of the module that runs
    func: Callable[..., Any]
    args: Any
    kwargs: Mapping[str, Any]
    live: list[Tensor]  # the arguments that depend on explained values
    loose: list[Tensor]  # constants among the arguments that are not parameters
    target: Any = None  # what it writes to: a tensor, a list of them (foreach ops), or None
    rule: Rule | None = None
    ruled: bool = False  # whether the rule applies: it runs in a node of its own
    keeps_values: bool = False  # a tracker asks the tape to keep its values, although no rule does
    wants_call: bool = False  # a tracker asks for a call, although no rule does
    entry: Any = None  # the same op in the reference pass
    call: Call | None = None  # what a rule sees of it
    result: Any = None
    results: list[Tensor] = field(default_factory=list)  # the tensors in the result
    outputs: list[Tensor] = field(default_factory=list)  # these, what was written to, and of what that is a view
    step: Step | None = None  # its line in the trace

    @property
    def writes(self) -> bool:
        return self.target is not None


@dataclass(frozen=True, slots=True, eq=False)
class Birth:
    """How an explained value enters a pass: as it is, or as the embedding in which ids were looked up."""

    key: str | None = None  # of the leaf; None where a module's output is detached
    positions: Tensor | None = None  # of each entry among the ids, -1 for those that come from elsewhere
    shape: torch.Size | None = None  # of the ids


class Tracker:
    """Follows one fact. A tracker defines the hooks that it needs, and the mode calls no others."""

    def begin(self, tensor: Tensor, birth: Birth) -> None:
        """This tensor is an explained value, as the model gets it."""

    def copy(self, old: Tensor, new: Tensor) -> None:
        """One tensor takes the place of another."""

    def before(self, op: Op) -> None:
        """The op is about to run, and its arguments are still what they were."""

    def describe(self, op: Op) -> None:
        """The op has a call: put on it what rules may ask for."""

    def run(self, op: Op) -> Any:
        """Run an op that has a call instead of the mode, or return `NOT_RUN`."""
        return NOT_RUN

    def follow(self, op: Op) -> None:
        """The op has run: carry the fact from its inputs to its outputs."""

    def place(self) -> Any:
        """Where in the pass this is: a layer begins, which may be run again."""

    def again(self, place: Any) -> None:
        """The layer that began at this place is run again: what it does was followed before."""


HOOKS = ("begin", "copy", "before", "describe", "run", "follow")


def hooks(trackers: Iterable[Tracker], name: str) -> list[Callable[..., Any]]:
    """The hooks of this name, of those trackers that define it."""
    default = getattr(Tracker, name)
    return [getattr(tracker, name) for tracker in trackers if getattr(type(tracker), name) is not default]
