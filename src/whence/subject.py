"""Subject: a model and the rows to explain, in the one form that methods see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whence import targets
from whence.engine.call import Rule
from whence.engine.propagate import Flow, Step
from whence.engine.sites import Sites, watched
from whence.errors import IndependentError, InputError, ModelError, NoAttention, NoRule
from whence.targets import Output, Target

Role = Literal["value", "ids", "fixed"]  # explained as it is, explained through its embedding, held


@dataclass
class Facts:
    """What the first pass over a subject's own values found out."""

    score: Tensor | None = None  # (rows, k)
    index: Tensor | None = None  # (rows, k, depth)
    values: dict[str, Tensor] = field(default_factory=dict)  # explained values by key


@dataclass
class Notes:
    """What the passes of one explanation did, for the receipt."""

    forwards: int = 0
    backwards: int = 0
    ops: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    unruled: Counter[tuple[str, str]] = field(default_factory=Counter)
    unseen: Counter[tuple[str, str]] = field(default_factory=Counter)
    steps: list[Step] | None = None
    modified: bool = False  # whether some rule was other than the derivative

    def summary(self) -> dict[str, Any]:
        """The receipt: plain data, largest counts first."""
        rules: Counter[tuple[str, str]] = Counter()
        for (family, _, rule), count in self.ops.items():
            rules[family, rule] += count
        return {
            "forward_passes": self.forwards,
            "backward_passes": self.backwards,
            "ops": [{"op": op, "rule": rule, "count": n} for (op, rule), n in rules.most_common()],
            "unruled": [{"op": op, "path": path, "count": n} for (op, path), n in self.unruled.most_common()],
            "unseen": [{"node": node, "path": path, "count": n} for (node, path), n in self.unseen.most_common()],
        }


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with its inputs by name, the target and the options of the call; never changed, only derived from."""

    model: Callable[..., Any]
    root: nn.Module | None
    inputs: Mapping[str, Any]
    form: Literal["tensor", "tuple", "dict"]
    roles: Mapping[str, Role]
    rows: int
    method: str
    target: Target = None
    output: Output = "logit"
    at: str | None = None
    seeds: tuple[int, ...] = ()
    batch_size: int | None = None
    progress: bool | None = None
    rules: Mapping[str, Rule] = field(default_factory=dict)
    refuse: bool = False  # unruled="error"
    needs_attention: bool = False
    wanted: tuple[str, ...] = ()  # inputs that `wrt` names
    values: Mapping[str, Tensor] = field(default_factory=dict)  # substituted for what the model would compute
    facts: Facts = field(default_factory=Facts)
    notes: Notes = field(default_factory=Notes)

    # ---- running ----

    def run(self, rules: Mapping[str, Rule] | None = None, *, gradient: bool = True, copies: bool = False) -> Pass:
        """One forward pass under the engine, ready to be pulled back by `rules` (the user's own merged over them)."""
        flow = Flow(
            {**(rules or {}), **self.rules},
            sites=Sites(self.values, self.at),
            strict=bool(rules) and "*" not in (rules or {}),
            refuse=self.refuse,
            method=self.method,
            trace=self.notes.steps is not None,
            copies=copies,
        )
        with torch.set_grad_enabled(gradient), watched(self.root, flow), flow:
            output = self._call(flow)
            score, index = targets.score(output, self.target, self.output, self.last_real(), self.rows)
            flow.is_live(score)  # audits the last stretch
        self._check(flow, score)
        self._note(flow)
        leaves = flow.sites.leaves
        if self.facts.score is None:
            self.facts.score, self.facts.index = score.detach(), index
            self.facts.values = {key: leaf.detach() for key, leaf in leaves.items()}
        return Pass(self, flow, score, leaves, rules)

    def _call(self, flow: Flow) -> Any:
        handed = {name: self._hand(flow, name, value) for name, value in self.inputs.items()}
        if self.form == "dict":
            return self.model(**handed)
        return self.model(*handed.values())

    def _hand(self, flow: Flow, name: str, value: Any) -> Any:
        """What the model gets: always a copy, because it may write to what it gets."""
        if not isinstance(value, Tensor):
            return value
        role = self.roles.get(name, "fixed")
        if role == "value":
            return flow.sites.tensor(flow, name, value)
        return flow.sites.ids(name, value) if role == "ids" else value.detach().clone()

    def _check(self, flow: Flow, score: Tensor) -> None:
        sites = flow.sites
        if self.at is not None and "at" not in sites.leaves:
            raise InputError(
                f"at={self.at!r}: the module {sites.path!r} ran {sites.calls} times in this forward pass.\n"
                "  Name a module that runs, and a call that happens (the first one is @1)."
            )
        if self.at is not None and sites.call is None and sites.calls > 1:
            raise InputError(
                f"at={self.at!r}: this module runs {sites.calls} times in one forward pass.\n"
                f'  Say which call is meant: at="{self.at}@1" to at="{self.at}@{sites.calls}".'
            )
        leaf = sites.leaves.get("at")
        if leaf is not None and leaf.shape[:1] != (self.rows,):
            raise InputError(
                f"at={self.at!r}: this module's output is {tuple(leaf.shape)}, and its first dimension is not the "
                f"{self.rows} rows.\n  Name a module whose output keeps the rows first."
            )
        if not bool(torch.isfinite(score).all()):
            row = int((~torch.isfinite(score)).any(1).nonzero()[0])
            raise ModelError(
                f"The model's score is {score[row].tolist()} for row {row}.\n"
                "  Check the weights and this row; an explanation needs a finite score."
            )
        if not sites.leaves:
            raise _independent(self)
        if self.refuse and flow.unseen and flow.modifies():
            node, path = next(iter(flow.unseen))
            raise NoRule(
                f"{self.method} has no rule for {node!r}, which ran where the engine cannot see "
                f"(before {path or 'the output'}).\n"
                '  Replace it by plain ops, or drop unruled="error" to take the derivative.'
            )
        if self.needs_attention and not flow.attention:
            raise NoAttention(
                f"{self.method} reads attention, and this model has none: no softmax multiplies anything.\n"
                "  Choose a method that works on any model, such as gradient or guided_backprop."
            )

    def _note(self, flow: Flow) -> None:
        notes = self.notes
        notes.forwards += 1
        notes.ops.update(flow.ops)
        notes.unruled.update(flow.unruled)
        notes.unseen.update(flow.unseen)
        notes.modified |= flow.modifies()
        if notes.steps is not None and flow.steps is not None:
            notes.steps.extend(flow.steps)

    # ---- derived subjects ----

    def pinned(self) -> Subject:
        """This subject with its target decided and its explained values known, whatever is substituted later."""
        if self.facts.score is None:
            self.run(gradient=False)
        target = self.target if self.facts.index is None else self.facts.index
        return replace(self, target=target, values=dict(self.facts.values))

    def take(self, rows: Tensor) -> Subject:
        """The subject of these rows, in this order, repeats allowed. What has one entry per row goes with its row."""

        def pick(value: Any) -> Any:
            per_row = isinstance(value, Tensor) and value.dim() > 0 and len(value) == self.rows
            return value.index_select(0, rows.to(value.device)) if per_row else value

        return replace(
            self,
            inputs={name: pick(value) for name, value in self.inputs.items()},
            values={key: pick(value) for key, value in self.values.items()},
            target=pick(self.target),
            seeds=tuple(self.seeds[int(row)] for row in rows),
            rows=len(rows),
            facts=Facts(),
        )

    def valued(self, values: Mapping[str, Tensor]) -> Subject:
        """The subject with these values substituted for the explained ones."""
        return replace(self, values=dict(values), facts=Facts())

    def split(self, size: int | None) -> Iterator[Subject]:
        """Parts of at most so many rows."""
        if size is None or self.rows <= size:
            yield self
            return
        for start in range(0, self.rows, size):
            yield self.take(torch.arange(start, min(start + size, self.rows)))

    # ---- real units ----

    def real(self, key: str, shape: Sequence[int]) -> Tensor | None:
        """Which units (rows, n) of this input are no padding, where an attention mask says so."""
        name = "decoder_attention_mask" if key.startswith("decoder_") else "attention_mask"
        mask = self.inputs.get(name)
        fits = isinstance(mask, Tensor) and mask.dim() == 2 and tuple(mask.shape) == tuple(shape[:2])
        return mask.bool() if isinstance(mask, Tensor) and fits else None

    def last_real(self) -> Tensor | None:
        """Each row's last position that is no padding."""
        for name in ("decoder_attention_mask", "attention_mask"):
            mask = self.inputs.get(name)
            if isinstance(mask, Tensor) and mask.dim() == 2:
                positions = torch.arange(mask.shape[1], device=mask.device)
                return (mask.bool() * positions).argmax(1)
        return None


@dataclass(frozen=True, eq=False)
class Pass:
    """One forward pass of a subject."""

    subject: Subject
    flow: Flow
    score: Tensor  # (rows, k)
    leaves: Mapping[str, Tensor]
    rules: Mapping[str, Rule] | None

    @property
    def x(self) -> dict[str, Tensor]:
        """The explained values, each (rows, 1, …) so that it broadcasts over targets."""
        return {key: leaf.detach().unsqueeze(1) for key, leaf in self.leaves.items()}

    def pull(self) -> dict[str, Tensor]:
        """Propagate each target's score back to the explained values: (rows, k, …) each."""
        if not self.score.requires_grad:
            raise _independent(self.subject)
        if any("CheckpointFunction" in node for node, _ in self.flow.unseen):
            raise ModelError(
                "The model uses torch.utils.checkpoint with use_reentrant=True, through which no gradient of an input "
                "can be asked for.\n  Use use_reentrant=False, or switch gradient checkpointing off."
            )
        try:
            columns = [self._column(k) for k in range(self.score.shape[1])]
        except RuntimeError as error:
            if self.flow.copies or "modified by an inplace operation" not in str(error):
                raise
            return self.subject.run(self.rules, copies=True).pull()  # written for inference, with in-place ops
        if all(m is None for column in columns for m in column):
            raise _independent(self.subject)
        return {
            key: _columns(leaf, [column[i] for column in columns]) for i, (key, leaf) in enumerate(self.leaves.items())
        }

    def _column(self, k: int) -> list[Tensor | None]:
        start = torch.zeros_like(self.score)
        start[:, k] = 1
        self.subject.notes.backwards += 1
        return self.flow.pull(self.score, start, list(self.leaves.values()), again=k + 1 < self.score.shape[1])


def _columns(leaf: Tensor, found: list[Tensor | None]) -> Tensor:
    parts = [torch.zeros_like(leaf) if m is None else m for m in found]
    return torch.stack(parts, 1) if len(parts) > 1 else parts[0].unsqueeze(1)  # (rows, k, …)


def _independent(subject: Subject) -> IndependentError:
    names = [name for name, role in subject.roles.items() if role != "fixed"]
    what = f"the output of {subject.at!r}" if subject.at else " and ".join(map(repr, names)) or "the input"
    return IndependentError(
        f"The explained score does not depend on {what} through any differentiable op.\n"
        "  Look for detach(), no_grad(), .data, .item(), arg-max or integer arithmetic on the way, for ids that enter "
        "no embedding, or name another input with wrt=."
    )
