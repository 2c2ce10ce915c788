"""Subject: a model and the rows to explain, in the one form that methods see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from whence.engine.call import Rule, derivative
from whence.engine.leaves import Instead
from whence.engine.plan import Plan
from whence.subject import passes
from whence.subject.passes import Pass
from whence.subject.record import Measured, Record
from whence.subject.targets import Output, Target
from whence.subject.up_to import UpTo, check_calls
from whence.util.frozen import changed

if TYPE_CHECKING:
    from whence.subject.baselines import Baseline

Role = Literal["value", "ids", "fixed"]  # explained as it is, explained through its embedding, not explained


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
    layer: str | None = None  # where a method reads that explains the inputs all the same
    input_roles: Mapping[str, Role] = field(default_factory=dict)  # the roles as they would be without `at`
    seeds: tuple[int, ...] = ()
    total_rows: int = 0  # how many rows the user gave
    row_numbers: tuple[int, ...] = ()  # of these rows among them
    batch_size: int | None = None
    memory: int | None = None  # bytes that one pass may take
    progress: bool | None = None
    rules: Mapping[str, Rule] = field(default_factory=dict)
    refuse: bool = False  # unruled="error"
    reads: bool = False  # the method only reads scores
    whole: bool = False  # the model gives one score for all rows together
    needs_attention: bool = False
    per_row_inputs: frozenset[str] = frozenset()  # names of the inputs that have one entry per row
    empty: tuple[str, ...] = ()  # names of the inputs that would be explained, had they any elements
    wrt: tuple[str, ...] = ()  # names of the inputs to explain, where the user gave some
    feature_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by input
    baselines: tuple[Baseline, ...] = ()  # several for methods that average over them
    values: Mapping[str, Any] = field(default_factory=dict)  # substituted for what the model would compute
    measured: Measured = field(default_factory=Measured)
    record: Record = field(default_factory=Record)

    def run(self, rules: Mapping[str, Rule] | None = None, **plan: Any) -> Pass:
        """One forward pass under the engine, ready to be pulled back by `rules`; see `Plan` for the rest."""
        if isinstance(self.model, UpTo) and not self.record.forwards:
            check_calls(self, self.model)
        return passes.run(self, Plan(rules, **plan))

    def run_again(self, **plan: Any) -> Pass:
        """Another pass of a model that was seen before, at plain derivatives: a light one wherever that is the same."""
        record = self.record
        seen = record.forwards > 0 and not record.unseen and record.plain and record.steps is None
        if not (seen and self.at is None and not self.rules and self.values) or self.memory is not None:
            return self.run({"*": derivative}, **plan)
        return self.run(light=True, **plan)

    @property
    def targets(self) -> int:
        """How many scores of each row are explained."""
        return self.target.shape[1] if isinstance(self.target, Tensor) else 1

    # ---- derived subjects ----

    def resolved(self) -> Subject:
        """This subject with its baselines resolved to numbers and tensors."""
        return changed(self, baselines=tuple(baseline.resolve(self) for baseline in self.baselines))

    def pinned(self) -> Subject:
        """This subject with its target decided and its explained values known, whatever is substituted later."""
        if self.measured.score is None:
            self.run(gradient=False, marks=True)
        target = self.target if self.measured.index is None else self.measured.index
        return changed(self, target=target, values=dict(self.measured.values))

    def take(self, rows: Tensor, *, bare: bool = False) -> Subject:
        """The subject of these rows, in this order, repeats allowed. Whatever has one entry per row is taken along.

        `bare` leaves seeds and numbers of rows out: for one pass they are not needed.
        """

        def pick(value: Any) -> Any:
            per_row = isinstance(value, Tensor) and value.dim() > 0 and len(value) == self.rows
            return value.index_select(0, rows.to(value.device)) if per_row else value

        order = [] if bare else rows.tolist()
        return changed(
            self,
            inputs={name: pick(value) if name in self.per_row_inputs else value for name, value in self.inputs.items()},
            values={
                key: value.take(rows) if isinstance(value, Instead) else pick(value)
                for key, value in self.values.items()
            },
            target=pick(self.target),
            baselines=tuple(baseline.map(pick) for baseline in self.baselines),
            seeds=tuple(map(self.seeds.__getitem__, order)),
            row_numbers=tuple(map(self.row_numbers.__getitem__, order)),
            rows=len(rows),
            measured=Measured(),
        )

    def valued(self, values: Mapping[str, Tensor]) -> Subject:
        """The subject with these values substituted for the explained ones."""
        return changed(self, values=dict(values), measured=Measured())

    def split(self, size: int | None) -> Iterator[Subject]:
        """Parts of at most so many rows."""
        if size is None or self.rows <= size:
            yield self
            return
        for start in range(0, self.rows, size):
            yield self.take(torch.arange(start, min(start + size, self.rows), device="cpu"))
