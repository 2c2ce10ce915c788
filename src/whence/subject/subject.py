"""Subject: a model and the rows to explain, in the one form that methods see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whence.engine.call import Rule, derivative
from whence.engine.flow import Flow
from whence.engine.leaves import AT, Instead
from whence.engine.log import Step
from whence.subject import passes
from whence.subject.passes import Pass
from whence.subject.targets import Output, Target
from whence.util.keys import input_of

Role = Literal["value", "ids", "fixed"]  # explained as it is, explained through its embedding, held


@dataclass
class Facts:
    """What the first pass over a subject's own values found out."""

    score: Tensor | None = None  # (rows, k)
    index: Tensor | None = None  # (rows, k, depth)
    logits: Tensor | None = None  # (rows, classes), of a classifier
    probability: Tensor | None = None  # (rows, k), of a classifier
    before: Tensor | None = None  # (rows, k): f where the method started from, if it came by it
    told: bool = False  # that this is f(x'), and the receipt has what there is to say about it
    values: dict[str, Tensor] = field(default_factory=dict)  # explained values by key
    padding: bool = False  # the method gives scores to what a mask hides, and they are to be kept
    beside: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # more of the answer: positive, multiplier


@dataclass
class Notes:
    """What the passes of one explanation did, for the receipt."""

    forwards: int = 0
    backwards: int = 0
    ops: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    unruled: Counter[tuple[str, str]] = field(default_factory=Counter)
    unseen: Counter[tuple[str, str]] = field(default_factory=Counter)
    steps: list[Step] | None = None
    used: set[str] = field(default_factory=set)  # names, families and groups of the ops that got a rule
    modified: bool = False  # whether some rule was other than the derivative
    plain: bool = True  # no pass needed copies or had checkpoints
    opens: bool = False  # the model's own functions have no derivative here, and are run openly
    families: set[str] = field(default_factory=set)  # of the live ops
    free: bool | None = None  # whether a target function gives a row the same score wherever it stands
    most: int | None = None  # rows that memory allows in one pass, once it was found too small
    bytes_per_row: float = 0.0  # of one pass, counted over its live ops
    facts: dict[str, Any] = field(default_factory=dict)  # what a method says of its work as a whole
    lost: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # what local path integrals missed
    per_row: dict[str, list[Any]] = field(default_factory=dict)  # what a method says of each row, such as its steps
    per_value: dict[str, list[Mapping[str, Tensor]]] = field(default_factory=dict)  # part by part, for `kept`

    def say(self, **facts: Sequence[Any]) -> None:
        """Facts for the receipt, one entry per row."""
        for name, entries in facts.items():
            self.per_row.setdefault(name, []).extend(entries)

    def measure(self, **values: Mapping[str, Tensor]) -> None:
        """Numbers beside the values, such as their standard error: for each explained value, (rows, k, …) like it."""
        for name, found in values.items():
            self.per_value.setdefault(name, []).append(found)

    def add(self, flow: Flow, rows: int) -> None:
        """Take down what one pass did."""
        self.forwards += 1
        self.bytes_per_row = max(self.bytes_per_row, flow.log.bytes / max(rows, 1))
        self.ops.update(flow.log.ops)
        self.unruled.update(flow.log.unruled)
        self.unseen.update(flow.log.unseen)
        self.used |= flow.log.used
        self.families |= flow.log.families
        self.plain &= flow.log.plain
        self.modified |= flow.modifies()
        if self.steps is not None and flow.log.steps is not None:
            self.steps.extend(flow.log.steps)

    def take_back(self, flow: Flow) -> None:
        """Forget a pass that has to be run again."""
        self.ops.subtract(flow.log.ops)
        self.unruled.subtract(flow.log.unruled)
        self.unseen.subtract(flow.log.unseen)
        if self.steps and flow.log.steps:
            del self.steps[-len(flow.log.steps) :]
        for counter in (self.ops, self.unruled, self.unseen):
            for key in [key for key, count in counter.items() if count <= 0]:
                del counter[key]

    def summary(self) -> dict[str, Any]:
        """The receipt: plain data, largest counts first."""
        rules: Counter[tuple[str, str]] = Counter()
        for (family, _, rule), count in self.ops.items():
            rules[family, rule] += count
        unruled = self.unruled | Counter({op: len(times) for op, times in self.lost.items() if op not in self.unruled})
        return {
            "forward_passes": self.forwards,
            "backward_passes": self.backwards,
            **self.facts,
            **self.per_row,
            **({"per_row": list(self.per_row)} if self.per_row else {}),
            "ops": [{"op": op, "rule": rule, "count": n} for (op, rule), n in rules.most_common()],
            "unruled": [
                {"op": op, "path": path, "count": n}
                | ({"gap": sum(lost)} if (lost := self.lost.get((op, path))) else {})
                for (op, path), n in unruled.most_common()
            ],
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
    underneath: Mapping[str, Role] = field(default_factory=dict)  # the roles as they were without `at`
    seeds: tuple[int, ...] = ()
    batch: int = 0  # how many rows the user gave
    places: tuple[int, ...] = ()  # of these rows among them
    batch_size: int | None = None
    progress: bool | None = None
    rules: Mapping[str, Rule] = field(default_factory=dict)
    refuse: bool = False  # unruled="error"
    needs_attention: bool = False
    goes: frozenset[str] = frozenset()  # inputs that have one entry per row
    wanted: tuple[str, ...] = ()  # inputs that `wrt` names
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of features, by input
    baseline: tuple[Mapping[str, Any], ...] = ()  # x' by input; several for methods that average over them
    values: Mapping[str, Any] = field(default_factory=dict)  # substituted for what the model would compute
    facts: Facts = field(default_factory=Facts)
    notes: Notes = field(default_factory=Notes)

    def run(self, rules: Mapping[str, Rule] | None = None, **plan: Any) -> Pass:
        """One forward pass under the engine, ready to be pulled back by `rules`; see `passes.Plan` for the rest."""
        return passes.run(self, passes.Plan(rules, **plan))

    def run_again(self, **plan: Any) -> Pass:
        """Another pass of a model that was seen before, at plain derivatives: a light one wherever that is the same."""
        notes = self.notes
        seen = notes.forwards > 0 and not notes.unseen and notes.plain and notes.steps is None
        if not (seen and self.at is None and not self.rules and self.values):
            return self.run({"*": derivative}, **plan)
        return self.run(light=True, **plan)

    # ---- derived subjects ----

    def pinned(self) -> Subject:
        """This subject with its target decided and its explained values known, whatever is substituted later."""
        if self.facts.score is None:
            self.run(gradient=False, marks=True)
        target = self.target if self.facts.index is None else self.facts.index
        return replace(self, target=target, values=dict(self.facts.values))

    def take(self, rows: Tensor) -> Subject:
        """The subject of these rows, in this order, repeats allowed. What has one entry per row goes with its row."""

        def pick(value: Any) -> Any:
            per_row = isinstance(value, Tensor) and value.dim() > 0 and len(value) == self.rows
            return value.index_select(0, rows.to(value.device)) if per_row else value

        return replace(
            self,
            inputs={name: pick(value) if name in self.goes else value for name, value in self.inputs.items()},
            values={
                key: value.take(rows) if isinstance(value, Instead) else pick(value)
                for key, value in self.values.items()
            },
            target=pick(self.target),
            baseline=tuple(_each(given, pick) for given in self.baseline),
            seeds=tuple(self.seeds[row] for row in rows.tolist()),
            places=tuple(self.places[row] for row in rows.tolist()),
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
            yield self.take(torch.arange(start, min(start + size, self.rows), device="cpu"))

    # ---- real units ----

    def mask(self, decoder: bool) -> Tensor | None:
        """The padding mask (rows, n) of the decoder's tokens, or of the others."""
        mask = self.inputs.get("decoder_attention_mask" if decoder else "attention_mask")
        return mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 and len(mask) == self.rows else None

    def real(self, key: str, shape: Sequence[int]) -> Tensor | None:
        """Which units (rows, n) of a value (rows, n, …) are no padding, where a mask says so."""
        decoder = key.startswith("decoder_") or (self._is_at(key) and "decoder" in (self.at or "").split("."))
        mask = self.mask(decoder)
        if mask is not None and self._is_beside_text(key, mask):
            return None
        several = len(shape) == 4 and self.underneath.get(input_of(key)) == "ids"  # ids per token, as of a box
        fits = mask is not None and (len(shape) in (2, 3) or several) and tuple(mask.shape) == tuple(shape[:2])
        return mask if fits else None

    def _is_at(self, key: str) -> bool:
        return self.at is not None and key.partition(".")[0] == AT

    def _is_beside_text(self, key: str, mask: Tensor) -> bool:
        """Whether a mask is about ids, and this input is something else that may happen to be as long."""
        name = input_of(key)
        if self._is_at(key) or name.endswith("embeds") or self.underneath.get(name) != "value":
            return False
        ids = [self.inputs[other] for other, role in self.underneath.items() if role == "ids"]
        return any(isinstance(value, Tensor) and value.shape == mask.shape for value in ids)

    def last_real(self, length: int) -> Tensor | None:
        """Each row's last position that is no padding, in an output of this length."""
        config = getattr(self.root, "config", None)
        decodes = any(name.startswith("decoder_") for name in self.inputs)
        mask = self.mask(decodes or bool(getattr(config, "is_encoder_decoder", False)))
        if mask is None or mask.shape[1] != length:
            return None
        positions = torch.arange(length, device=mask.device)
        return (mask * positions).argmax(1)

    def tokens(self, key: str, shape: Sequence[int]) -> bool:
        """Whether a value (rows, n, hidden) is one of tokens: a mask, ids among the inputs or its name say so."""
        ids = any(isinstance(v, Tensor) and not v.is_floating_point() and v.dim() == 2 for v in self.inputs.values())
        return len(shape) == 3 and (
            self.real(key, shape) is not None or key.endswith("embeds") or (self._is_at(key) and ids)
        )


def _each(given: Any, pick: Callable[[Any], Any]) -> Any:
    """A baseline by input, or several to choose from, value by value."""
    if isinstance(given, Mapping):
        return {name: pick(value) for name, value in given.items()}
    return replace(given, candidates=tuple(_each(candidate, pick) for candidate in given.candidates))
