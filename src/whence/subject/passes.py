"""Passes: one forward run of a subject under the engine, and what can be pulled back from it."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.engine import blame
from whence.engine.call import CallsNeeded, Overwritten, Rule, merged
from whence.engine.captures import Captures, Site
from whence.engine.custom_functions import suspended
from whence.engine.flow import Flow
from whence.engine.leaves import Instead, Leaves
from whence.engine.log import Log
from whence.engine.modules import watched
from whence.engine.plan import OverBudget, Plan
from whence.engine.scope import Watch, rewind
from whence.engine.tape import WAY_OUT, CopiesNeeded, RowsNeeded, Tape
from whence.errors import DivergedError, ModelError, TargetError, WhenceError
from whence.rules.ledger import RowsLost
from whence.rules.reveal_cancel import Parts, parts_of
from whence.subject import chance, logits, targets
from whence.subject.checks import check_pass, independent
from whence.subject.masks import last_real, padding_mask
from whence.util.frozen import changed

if TYPE_CHECKING:
    from whence.subject.subject import Subject


IN_PLACE = "modified by an inplace operation"
_NO_DERIVATIVE = re.compile(r"derivative for (?:aten::)?(\w+) is not implemented")


def run(subject: Subject, plan: Plan) -> Pass:
    """One forward pass, with its reference recorded before it if there is one; again, otherwise, where that helps."""
    if subject.record.opens and not plan.opens:
        plan = changed(plan, opens=True)
    if subject.memory is not None:
        return _within(subject, plan)
    return _run(subject, plan)


def _within(subject: Subject, plan: Plan) -> Pass:
    """A pass that may take so much memory: layer by layer, if it would take more in one piece."""
    from whence.subject import memory  # few calls need it

    plan = memory.planned(subject, plan)
    try:
        return memory.told(_run(subject, plan))
    except OverBudget as over:
        plan = memory.by_layer(subject, plan, over)
    return memory.told(_run(subject, plan))


def _run(subject: Subject, plan: Plan) -> Pass:
    while True:
        try:
            if plan.reference is None:
                return _forward(subject, plan)
            tape = Tape(plan.copies)
            parts = None if plan.parts is None else Parts(tape, plan.parts)
            before = _forward(plan.reference, changed(plan, gradient=plan.graph), tape, parts)
            if plan.reference.rows != subject.rows and before.flow.leaves.ids.aside:
                raise RowsNeeded("ids that are used for more than their embedding")
            if parts is not None:
                parts.settle(before.held)
            tape.rewind()
            done = _forward(subject, plan, tape, parts)
            return changed(done, reference=_read_again(before, done))
        except Exception as error:
            other = _otherwise(subject, plan, error)
            if other is None:
                raise
        plan = other


def _otherwise(subject: Subject, plan: Plan, error: Exception) -> Plan | None:
    """Another way to run a pass that failed, or None."""
    if isinstance(error, ModelError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, CopiesNeeded) and not plan.copies:
        return changed(plan, copies=True)
    if plan.reference is not None and plan.reference.rows != subject.rows:  # one row does not stand for all here
        return changed(plan, reference=_for_each_row(plan.reference, subject))
    if isinstance(error, DivergedError) and not plan.graph:
        return changed(plan, graph=True)  # perhaps it was liveness that differed, and a graph shows it
    if isinstance(error, CallsNeeded) and plan.ahead is not False:
        return changed(plan, ahead=False)  # a model that differentiates inside itself
    if isinstance(error, RowsNeeded):
        raise DivergedError(f"The baseline's values have other shapes than the input's ({error}).\n{WAY_OUT}") from None
    if isinstance(error, RuntimeError) and "does not require grad" in str(error):  # it differentiates inside itself,
        if plan.reference is not None and not plan.graph:
            return changed(plan, graph=True)
        if not plan.parameters:
            return changed(plan, parameters=True)  # perhaps by its own parameters
        if not plan.gradient:
            return changed(plan, gradient=True)
    return None


def _for_each_row(reference: Subject, subject: Subject) -> Subject:
    """The reference with as many rows as the subject: its own, where x' is put in their place."""
    if reference.values and all(isinstance(value, Instead) for value in reference.values.values()):
        return changed(subject, values=reference.values, measured=type(subject.measured)())
    return reference.take(torch.zeros(subject.rows, dtype=torch.long, device="cpu"))


def _read_again(before: Pass, done: Pass) -> Pass:
    """The reference's scores for the targets that the input's pass has decided, for every row."""
    index, facts = done.index, before.subject.measured
    score = before.score if index is None else targets.pick(before.held, index, partial(last_real, done.subject))[0]
    facts.score, facts.index = score.detach(), index
    return changed(before, score=score)


def _forward(subject: Subject, plan: Plan, tape: Tape | None = None, parts: Parts | None = None) -> Pass:
    for listener in (plan.tell, plan.ledger):
        if listener is not None:
            listener.begin()  # first: it renews what it has followed
    reads = any(asked is not None for asked in (plan.wants, plan.edit, plan.tell))
    active = reads or plan.ledger is not None
    captures = Captures(
        plan.wants, plan.edit, plan.tell or plan.ledger, active,
        enters=reads,
        counts=active or plan.attention or subject.needs_attention,
        tokens=getattr(plan.tell, "tokens", None),
        projections=getattr(plan.tell, "projections", False),
    )  # fmt: skip
    flow = Flow(
        plan,
        rules=merged(plan.rules or {}, subject.rules) if subject.rules else plan.rules,
        leaves=Leaves(subject.values, subject.at, subject.rows),
        captures=captures,
        tape=tape,
        trackers=() if parts is None else (parts,),
        log=Log(None if subject.record.steps is None else [], subject.record.lost),
        method=subject.method,
        refuse=subject.refuse,
        root=None if plan.light else subject.root,
    )
    rewind()
    random = torch.get_rng_state()
    cut = plan.detach_at is not None or plan.layers is not None
    root = subject.root if active or cut or subject.at is not None else None
    with torch.set_grad_enabled(plan.gradient), nullcontext() if root is None else watched(root, flow):
        handed = {name: _hand(subject, flow, name, value) for name, value in subject.inputs.items()}
        with flow:
            output = _called(subject, handed, flow)
            flow.log.quiet = not callable(subject.target)
            held = _scored(subject, output)
            if not plan.light:
                flow.is_live(held)  # audits the last stretch
        score, index = targets.pick(held, subject.target, partial(last_real, subject))
    facts, measures = subject.measured, subject.measured.score is None
    if measures and index is not None and not subject.values:
        facts.probability = targets.probability(held.detach(), index, subject.output)
        targets.warn_of_probabilities(subject.method, output, subject.target, subject.output, subject.rows)
    check_pass(subject, flow, score, seen=plan.gradient or plan.marks)
    subject.record.add(flow, subject.rows)
    if flow.leaves.held and not flow.records:
        subject.record.overall["held"] = list(flow.leaves.held)
    leaves = flow.leaves.tensors
    if measures:
        drawn = not torch.equal(torch.get_rng_state(), random)
        if drawn and not subject.values:  # what is substituted cannot be given to the plain model
            chance.warn_of_chance(subject, held, lambda: _scored(subject, plain_output(subject, leaves)))
        facts.score, facts.index = score.detach(), index
        if not (callable(subject.target) or isinstance(output, Tensor)):
            subject.record.overall |= logits.scores_from(output)
        if index is not None and held.dim() == 2 and held.shape[1] > 1:
            there = held.detach()
            facts.logits = there.double().clamp(min=1e-300).log() if subject.output == "probability" else there
        facts.values = {key: leaf.detach() for key, leaf in leaves.items()}
    return Pass(subject, plan, flow, held, score, index, leaves)


def _called(subject: Subject, handed: Mapping[str, Any], flow: Flow) -> Any:
    """The model's output; what it raises by itself becomes a ModelError, of which `_otherwise` reads the cause."""
    try:
        return subject.model(**handed) if subject.form == "dict" else subject.model(*handed.values())
    except Exception as error:
        with suspended():
            own = blame.born_in_the_model(error, lambda: _alone(subject, flow))
            advice = "" if own is None or not subject.values else _elsewhere(subject)
        if own is None:
            raise
        raise blame.of_model(own, subject.model, subject.inputs, subject.root, advice=advice) from own


def _elsewhere(subject: Subject) -> str:
    """What to do about a model that takes the inputs and not what a method puts in their place."""
    rewind()
    try:
        with torch.no_grad():
            plain_output(subject)
    except Exception:
        return ""
    return (
        f"It takes the inputs themselves, but not the values that {subject.method} puts in their place (a baseline, as "
        "a rule, such as an image of zeros that a model leaves out as padding).\n"
        "  Give another baseline=, or choose a method that has none."
    )


def _alone(subject: Subject, flow: Flow) -> None:
    """The model as it is, on what this pass gave it."""
    rewind()
    with torch.enable_grad():
        plain_output(subject, flow.leaves.tensors)


def plain_output(subject: Subject, leaves: Mapping[str, Tensor] | None = None) -> Any:
    """The model's output outside of any explanation, on these leaves in the place of values."""
    put = {name: leaf for name, leaf in (leaves or {}).items() if subject.roles.get(name) == "value"}
    given = {name: _copied(put.get(name, value)) for name, value in subject.inputs.items()}
    with Watch():
        return subject.model(**given) if subject.form == "dict" else subject.model(*given.values())


def _scored(subject: Subject, output: Any) -> Tensor:
    """The explained scores; what a target function raises by itself comes as a TargetError."""
    target = subject.target
    try:
        real = padding_mask(subject) if isinstance(output, Mapping) else None
        rows = 1 if subject.whole else subject.rows
        return targets.scores(output, target, subject.output, rows, real, reads=subject.reads)
    except Exception as error:
        with suspended():
            own = blame.born_in_the_model(error, lambda: target(output)) if callable(target) else None
        if own is None:
            raise
        raise TargetError(
            f"The target function raised {type(error).__name__}: {error}\n"
            f"  It gets the model's output ({logits.describe(output)}) and must give one score per row."
        ) from error


def _hand(subject: Subject, flow: Flow, name: str, value: Any) -> Any:
    """What the model gets: always a copy, because it may write to what it gets."""
    if not isinstance(value, Tensor):
        return _copied(value)
    role = subject.roles.get(name, "fixed")
    if role == "value":
        return flow.leaves.enter(flow, name, value)
    return flow.leaves.ids.begin(name, value) if role == "ids" else value.detach().clone()


def _copied(value: Any) -> Any:
    """What is not explained is copied too, as deep as it can be."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(_copied(item) for item in value)
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if value is None or isinstance(value, str | int | float | bool) or callable(value):
        return value
    memo = {id(t): t.detach().clone() for t in _inside(value, 4)}  # tensors with a graph refuse to be deep-copied
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # what cannot be copied is handed over as it is
        return value


def _inside(value: Any, depth: int) -> list[Tensor]:
    """The tensors that an object holds."""
    if isinstance(value, Tensor):
        return [value]
    if depth == 0 or isinstance(value, str | bytes):
        return []
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
    return [t for part in (*parts, *getattr(value, "__dict__", {}).values()) for t in _inside(part, depth - 1)]


@dataclass(frozen=True, eq=False)
class Pass:
    """One forward pass of a subject."""

    subject: Subject
    plan: Plan
    flow: Flow
    held: Tensor  # the model's scores, all of them
    score: Tensor  # (rows, k)
    index: Tensor | None  # (rows, k, depth), where the scores are among those held
    leaves: Mapping[str, Tensor]
    reference: Pass | None = None

    @property
    def captured(self) -> dict[Site, Tensor]:
        """What was read on the way, by site."""
        return self.flow.captures.values

    @property
    def edges(self) -> dict[Site, Any]:
        """What `columns` takes to give the gradients by what was read."""
        return self.flow.captures.edges

    @property
    def x(self) -> dict[str, Tensor]:
        """The explained values, each (rows, 1, …) so that it broadcasts over targets."""
        return {key: leaf.detach().unsqueeze(1) for key, leaf in self.leaves.items()}

    def positive_score(self) -> Tensor:
        """The positive part of the score's change, (rows, k)."""
        assert self.reference is not None
        plus = parts_of(self.held, self.reference.held).plus
        return plus if self.index is None else targets.pick(plus, self.index, partial(last_real, self.subject))[0]

    def pull(
        self, rules: Mapping[str, Rule] | None = None, *, again: bool = False, positive: bool = False,
        start: Tensor | None = None,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Propagate each target's score, or the positive part of its change, to the explained values: (rows, k, …).

        `rules` is another table for the same families; `again` keeps the pass for further propagations; `start`
        (rows, k) is what each score begins with instead of 1.
        """
        if not self.score.requires_grad:
            raise independent(self.subject)
        try:
            score = self.positive_score() if positive else None
            columns = self.columns(list(self.leaves.values()), rules, again=again, score=score, start=start)
        except (RuntimeError, Overwritten) as error:
            if (op := _NO_DERIVATIVE.search(str(error))) is not None:
                raise ModelError(
                    f"{self.subject.method} needs the derivative of {op[1]!r}, which torch does not have.\n"
                    "  Choose deeplift, lrp or a method that removes units, or write the model without this op."
                ) from error
            if self.plan.copies or not (isinstance(error, Overwritten) or IN_PLACE in str(error)):
                return self._opened(error).pull(rules, again=again, positive=positive, start=start)
            self.subject.record.take_back(self.flow)
            self.subject.record.plain = False
            anew = run(self.subject, changed(self.plan, copies=True, light=False))  # written for inference
            return anew.pull(rules, positive=positive, start=start)
        except Exception as error:
            return self._opened(error).pull(rules, again=again, positive=positive, start=start)
        if not positive and all(m is None for column in columns for m in column):
            raise independent(self.subject)
        return self.gathered(columns)

    def _opened(self, error: Exception) -> Pass:
        """The pass anew where a function of the model's own did not differentiate itself; else raise what it raised."""
        record = self.subject.record
        if self.flow.closed and record.opens and not isinstance(error, WhenceError | RowsLost):
            raise ModelError(
                f"The model's own {' and '.join(sorted(self.flow.closed))} has no derivative here. It raised "
                f"{type(error).__name__}: {error}\n  Choose a method that reads outputs alone, such as occlusion."
            ) from error
        if record.opens or not self.flow.closed:
            blame.the_way_back(error, self.subject.method, self.subject.inputs)
            raise error
        record.take_back(self.flow)
        record.opens = True
        return run(self.subject, self.plan)

    def gathered(self, columns: list[list[Tensor | None]]) -> dict[str, Tensor]:
        """What was sent back to each explained value, (rows, k, …)."""
        return {
            key: stacked(leaf, [column[i] for column in columns]) for i, (key, leaf) in enumerate(self.leaves.items())
        }

    def columns(
        self, tensors: list[Any], rules: Mapping[str, Rule] | None = None, *, again: bool = False,
        score: Tensor | None = None, start: Tensor | None = None,
    ) -> list[list[Tensor | None]]:  # fmt: skip
        """For each target, what its score (or another one) sends back to any tensors of this pass."""
        columns, score = [], self.score if score is None else score
        starts = [torch.zeros_like(score) for _ in range(score.shape[1])]
        for k, begin in enumerate(starts):
            begin[:, k] = 1 if start is None else start[:, k]
        self.subject.record.backwards += len(starts)
        if self.plan.layers is not None and self.plan.layers.budget is None:
            return self.flow.layers.columns(self.flow, score, starts, tensors, rules, self._next, again)
        for k, begin in enumerate(starts):
            self._next(k)
            columns.append(self.flow.pull(score, begin, tensors, rules, again=again or k + 1 < len(starts)))
        return columns

    def _next(self, k: int) -> None:
        """Tell the account which target comes now."""
        if self.plan.ledger is not None:
            self.plan.ledger.target = k


def stacked(leaf: Tensor, columns: list[Tensor | None]) -> Tensor:
    """One tensor (rows, k, …) of what each target sent back; what got nothing is 0."""
    parts = [torch.zeros_like(leaf) if m is None else m for m in columns]
    return torch.stack(parts, 1) if len(parts) > 1 else parts[0].unsqueeze(1)  # (rows, k, …)
