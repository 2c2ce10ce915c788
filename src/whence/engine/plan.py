"""What a forward pass can be asked for: the one list of its options, and the trackers that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from whence.engine.call import Rule
from whence.engine.captures import Captures, Edit, Listener, Site
from whence.engine.tape import Tape
from whence.engine.trackers import Tracker
from whence.engine.trackers.modality import Modalities
from whence.engine.trackers.ordering import Orders
from whence.engine.trackers.provenance import Provenance
from whence.engine.trackers.rows import Rows

if TYPE_CHECKING:
    from whence.engine.layerwise import Counted, Layerwise


class Account(Listener, Protocol):
    """The account of a relevance pass: it listens to values and follows every op."""

    target: int  # the one that is propagated now

    def tracker(self) -> Tracker:
        """Follows the ops of one pass."""


@dataclass(frozen=True)
class Cuts:
    """Which modules are layers: to be cut from one another, or, with a budget, to be counted."""

    paths: frozenset[str]
    budget: int | None = None  # bytes that a pass in one piece may take
    targets: int = 1

    def begin(self) -> Counted | Layerwise:
        """For one pass."""
        from whence.engine.layerwise import Counted, Layerwise  # few calls need them

        return Layerwise(self.paths) if self.budget is None else Counted(self)


class OverBudget(BaseException):
    """The graph of the whole pass would take too much; no model catches it by `except Exception`."""

    def __init__(self, estimate: int) -> None:
        super().__init__()
        self.estimate = estimate


@dataclass(frozen=True, eq=False)
class Plan:
    """How a forward pass is run."""

    # what is propagated
    rules: Mapping[str, Rule] | None = None  # by family or group; a user's own rules are merged over them
    gradient: bool = True  # build a graph
    expand: frozenset[str] = frozenset()  # fused ops to write out in plain ones
    ahead: bool | None = None  # prepare rules in the forward pass, such that no other table will do on the way back
    # (None: in a pass that is replayed against a reference)
    detach_at: Callable[[str], bool] | None = None  # modules at whose outputs the graph begins anew
    layers: Cuts | None = None  # modules whose graphs are not kept, or are counted

    # a reference pass, recorded first
    reference: Any = None  # the subject at x', against which the pass is replayed
    graph: bool = False  # record it with a graph, for models with ops that the mode cannot see
    through: bool = True  # both passes look through detach() and no_grad()
    parts: str | None = None  # positive and negative parts: "" of the score, "all" and "dense" by RevealCancel

    # what is read and replaced
    wants: Callable[[Site], bool] | None = None  # sites to read
    edit: Edit | None = None  # values to replace
    tell: Listener | None = None  # is told of each site as it is passed
    attention: bool = False  # count attention calls, although nothing is read of them

    # what is followed
    rows: bool = False  # where the rows are, for rules that sum per row
    origins: bool = False  # what values were made of
    ledger: Account | None = None  # the account of a relevance pass
    marks: bool = False  # live ops, in a pass without gradients too

    # how the model is treated
    copies: bool = False  # save copies of whatever backward needs, for models that overwrite it in place
    parameters: bool = False  # leave parameters in the graph, for models that differentiate by them
    opens: bool = False  # run the forward of the model's own autograd functions op by op
    light: bool = False  # a further pass of a model that was seen before: take down nothing, and leave everything
    # after the last explained value to autograd


def trackers_of(plan: Plan, captures: Captures, tape: Tape | None, rows: int | None) -> list[Tracker]:
    """Those that a plan asks for, in the order in which one may build on another."""
    trackers: list[Tracker] = [] if tape is None else [tape, Orders(tape)]
    if captures.tokens is not None:
        trackers.append(captures.tokens)
    if captures.active:
        trackers.append(Modalities())
    if captures.counts:
        trackers.append(captures)
    if plan.origins or plan.ledger is not None or (tape is not None and tape.replays):
        trackers.append(Provenance())
    if plan.rows and rows is not None:
        trackers.append(Rows(rows))
    if plan.ledger is not None:
        trackers.append(plan.ledger.tracker())
    return trackers
