"""What metrics ask for, and how many of such questions are answered at once.

A metric is a generator: it yields a list of requests of one kind and is sent their answers. The requests of all rows,
methods and metrics of a chunk are answered together, each kind by one function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whence.errors import InputError
from whence.evaluation.examples import Example
from whence.results.attribution import Attribution
from whence.subject.targets import sums_to_one


@dataclass(frozen=True, eq=False)
class Copy:
    """The row with some of its units replaced or deleted. The answer: its logits (classes,)."""

    keep: Tensor  # (units,) bool
    operator: Any = "zero"
    noise: float = 0.0  # of imputed values


@dataclass(frozen=True, eq=False)
class Moved:
    """The row with a step added to its input. The answer: its logits (classes,)."""

    step: Tensor  # like the input, (1, …)


@dataclass(frozen=True, eq=False)
class Erased:
    """The row with the attention to some positions set to 0 and the rest renormalised. The answer: its logits."""

    which: Tensor  # (units,) bool
    layers: Any = "all"  # numbers of attention calls, or "all"
    heads: Any = "all"


@dataclass(frozen=True, eq=False)
class Attended:
    """The attention that each position gets: mean over the chosen calls, heads and queries, (units,)."""

    layers: Any = "all"
    heads: Any = "all"


@dataclass(frozen=True, eq=False)
class Again:
    """The method's own answer for the row with a step added to its input. The answer: one score per element."""

    step: Tensor


@dataclass(frozen=True, eq=False)
class Randomised:
    """The method's own answer for the same model with random weights in some layers. The answer: unit scores."""

    stage: int
    stages: int
    alone: bool  # only that layer, instead of all from the top down to it


@dataclass(frozen=True, eq=False)
class OtherClass:
    """The method's own answer for the row and another class. The answer: unit scores."""

    target: int

    @property
    def key(self) -> Any:
        """What such requests have in common that are answered together."""
        return None


@dataclass(frozen=True, eq=False)
class Under:
    """The method's own answer for the same row and class under another model. The answer: unit scores."""

    model: Any

    @property
    def key(self) -> Any:
        return id(self.model)


@dataclass(frozen=True, eq=False)
class Retrained:
    """The row without its most relevant units, by a model that was trained without them. The answer: its logits."""

    train: Callable[[Callable[[Tensor], Tensor]], Any]  # is given what removes units, and gives a model
    share: float
    rounding: Callable[[View, float], int]  # how many units a share is
    operator: Any
    absolute: bool

    @property
    def key(self) -> Any:
        return id(self.train), self.share, str(self.operator), self.absolute


_ROUNDING = 64  # units in the last place of the largest score: what sums over a network may be off by


@dataclass(frozen=True, eq=False)
class View:
    """What a metric sees: one row, as one method explained it."""

    example: Example
    method: str
    scores: Tensor  # (units,) float64
    target: int
    attribution: Attribution  # of this row, with its rows axis
    logits: Tensor  # (classes,) of the unperturbed row
    seed: int

    def order(self, *, absolute: bool = False, least: bool = False, among: Tensor | None = None) -> Tensor:
        """The removable units from the most relevant to the least, or the other way; ties by the seed."""
        free = (self.example.free if among is None else among).nonzero().flatten()
        mixed = free[torch.randperm(len(free), generator=self.generator(), device="cpu")]
        values = self.scores[mixed].abs() if absolute else self.scores[mixed]
        return mixed[values.argsort(descending=not least, stable=True)]

    def without(self, units: Tensor, operator: Any = "zero", noise: float = 0.0) -> Copy:
        keep = torch.ones(len(self.scores), dtype=torch.bool, device="cpu")
        keep[units] = False
        return Copy(keep, operator, noise)

    def only(self, units: Tensor, operator: Any = "zero", noise: float = 0.0) -> Copy:
        keep = ~self.example.free
        keep[units] = True
        return Copy(keep, operator, noise)

    def value(self, logits: Tensor, output: str) -> Tensor:
        """The explained score, (…) of logits (…, classes)."""
        return probabilities(logits, output, self.example.exclusive, self.logits)[..., self.target]

    def generator(self, salt: int = 0) -> torch.Generator:
        """Random numbers of this row's own, whatever else is evaluated with it."""
        return torch.Generator().manual_seed(((self.seed * 1_000_003 + self.example.seed) * 101 + salt) % 2**62)

    def settled(self, scores: Tensor) -> Tensor:
        """Scores (units,) of the removable units; what is 0 up to rounding is 0, so that ranks tie there."""
        values, kind = scores[self.example.free], self.attribution.values.dtype
        eps = torch.finfo(kind if kind.is_floating_point else torch.float64).eps
        largest = values.abs().amax() if len(values) else 0.0
        return torch.where(values.abs() <= _ROUNDING * eps * largest, 0.0, values)

    @property
    def raw(self) -> Tensor:
        """φ of every element of the input, (1, …) like it."""
        raw = self.attribution.raw
        if not isinstance(raw, Tensor) or raw.shape != self.example.x.shape:
            raise InputError(
                f"{self.method} has no value for every element of the input.\n  Leave this metric out for it."
            )
        return raw


@dataclass(frozen=True)
class Result:
    """What one metric found for one row under one method."""

    value: float  # NaN: the row does not count
    parts: dict[str, float] = field(default_factory=dict)  # summed over rows: what a data set's score is made of
    curve: tuple[list[float], list[float]] | None = None


def probabilities(logits: Tensor, output: str, exclusive: bool = True, row: Tensor | None = None) -> Tensor:
    """Logits (…, classes) in the space that a metric measures in; a single logit is that of a binary classifier.

    `row` is what the model says of the row as it is: a model that gives probabilities there gives them everywhere.
    """
    if output == "logit":
        return logits
    if logits.shape[-1] == 1 or not exclusive:
        return logits.sigmoid() if output == "probability" else torch.nn.functional.logsigmoid(logits)
    if sums_to_one(logits if row is None else row):
        return logits if output == "probability" else logits.clamp(min=torch.finfo(logits.dtype).tiny).log()
    return logits.softmax(-1) if output == "probability" else logits.log_softmax(-1)


def both_classes(logits: Tensor) -> Tensor:
    """A single logit as those of no and yes; others as they are."""
    return torch.cat([torch.zeros_like(logits), logits], -1) if logits.shape[-1] == 1 else logits


def decision(logits: Tensor) -> int:
    """The class that a row is given."""
    return int(both_classes(logits).argmax())
