"""Running statistics of attributions: one number for each element, over everything that was seen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whence.captum.calls import check


class Stat:
    """A statistic that is updated with one tensor after the other; equal if of one kind with the same options."""

    _name = ""

    def __init__(self, name: str | None = None, **kwargs: Any) -> None:
        self.params = kwargs
        self._given = name
        self.init()

    def init(self) -> None:
        """Forget what was seen."""
        self.seen = 0
        self.value: Any = None

    def update(self, x: Tensor) -> None:
        raise NotImplementedError

    def get(self) -> Any:
        return self.value

    @property
    def name(self) -> str:
        return self._given or self._name or type(self).__name__.lower()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.params == getattr(other, "params", None)

    def __hash__(self) -> int:
        return hash((type(self), frozenset(self.params.items())))


class Count(Stat):
    """How many tensors were seen."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)

    def update(self, x: Tensor) -> None:
        self.value = (self.value or 0) + 1


class Mean(Stat):
    """The mean."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)

    def update(self, x: Tensor) -> None:
        self.seen += 1
        mean = torch.zeros_like(x) if self.value is None else self.value
        self.value = mean + (x - mean) / self.seen


class MSE(Stat):
    """The sum of squared distances from the mean, in float64 (Welford 1962)."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)

    def init(self) -> None:
        super().init()
        self.mean: Any = 0.0
        self.squares: Any = 0.0

    def update(self, x: Tensor) -> None:
        self.seen += 1
        far = x.double() - self.mean
        self.mean = self.mean + far / self.seen
        self.squares = self.squares + far * (x.double() - self.mean)

    def get(self) -> Any:
        return self.squares if self.seen else None


class Var(MSE):
    """The variance, the sum of squares divided by n − order."""

    def __init__(self, name: str | None = None, order: int = 0) -> None:
        Stat.__init__(self, name, order=order)
        self.order = order

    @property
    def name(self) -> str:
        return self._given or ("sample_" if self.order else "") + "variance"

    def get(self) -> Any:
        return self.squares / (self.seen - self.order) if self.seen > self.order else None


class StdDev(Var):
    """The root of the variance."""

    @property
    def name(self) -> str:
        return self._given or ("sample_" if self.order else "") + "std_dev"

    def get(self) -> Any:
        variance = super().get()
        return None if variance is None else variance.sqrt()


class GeneralAccumFn(Stat):
    """What a function of two tensors gives over all of them."""

    def __init__(self, fn: Callable[[Tensor, Tensor], Tensor], name: str | None = None) -> None:
        super().__init__(name, fn=fn)
        self.fn = fn

    def update(self, x: Tensor) -> None:
        self.value = x if self.value is None else self.fn(self.value, x)


class Min(GeneralAccumFn):
    """The smallest value."""

    def __init__(self, name: str | None = None, min_fn: Callable[[Tensor, Tensor], Tensor] = torch.min) -> None:
        super().__init__(min_fn, name)


class Max(GeneralAccumFn):
    """The largest value."""

    def __init__(self, name: str | None = None, max_fn: Callable[[Tensor, Tensor], Tensor] = torch.max) -> None:
        super().__init__(max_fn, name)


class Sum(GeneralAccumFn):
    """The sum."""

    def __init__(self, name: str | None = None, add_fn: Callable[[Tensor, Tensor], Tensor] = torch.add) -> None:
        super().__init__(add_fn, name)


def CommonStats() -> list[Stat]:
    """Mean, sample variance and deviation, smallest and largest value."""
    return [Mean(), Var(order=1), StdDev(order=1), Min(), Max()]


class SummarizerSingleTensor:
    """Several statistics of one tensor."""

    def __init__(self, stats: list[Stat], summary_stats_indices: list[int]) -> None:
        self._stats, self._shown = stats, summary_stats_indices
        for stat in stats:
            stat.init()

    def update(self, x: Tensor) -> None:
        for stat in self._stats:
            stat.update(x)

    def get(self, stat: Stat) -> Stat | None:
        """The statistic of this kind, if there is one."""
        return next((own for own in self._stats if own == stat), None)

    @property
    def summary(self) -> dict[str, Any]:
        return {self._stats[i].name: self._stats[i].get() for i in self._shown}


class Summarizer:
    """Several statistics of a tensor, or of each tensor of a tuple."""

    def __init__(self, stats: list[Stat]) -> None:
        self._asked = stats
        self._parts: list[SummarizerSingleTensor] = []
        self._several = False

    def update(self, x: Any) -> None:
        several = isinstance(x, tuple)
        parts = x if several else (x,)
        if not self._parts:
            self._several = several
            self._parts = [self._new() for _ in parts]
        check(
            several == self._several and len(parts) == len(self._parts),
            "The summarizer was updated with a tensor before, and a tuple now, or with tuples of two lengths.",
        )
        for part, value in zip(self._parts, parts, strict=True):
            part.update(value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float, device="cpu"))

    def _new(self) -> SummarizerSingleTensor:
        return SummarizerSingleTensor(copy.deepcopy(self._asked), list(range(len(self._asked))))

    @property
    def summary(self) -> Any:
        """The statistics by name, a list of them for tuples; None before the first update."""
        if not self._parts:
            return None
        shown = [part.summary for part in self._parts]
        return shown if self._several else shown[0]


class ClassSummarizer(Summarizer):
    """Statistics of all rows, and of the rows of each label."""

    def __init__(self, stats: list[Stat]) -> None:
        super().__init__(stats)
        self.summaries: dict[Any, Summarizer] = {}

    def update(self, x: Any, labels: Any = None) -> None:
        if labels is None:
            super().update(x)
            return
        parts = x if isinstance(x, tuple) else (x,)
        rows = len(parts[0])
        given = labels.tolist() if isinstance(labels, Tensor) else labels if isinstance(labels, list) else [labels]
        given = [tuple(label) if isinstance(label, list) else label for label in given]
        given = given * rows if len(given) == 1 else given
        check(all(len(part) == rows for part in parts), "The tensors have different numbers of rows.")
        check(len(given) == rows, f"There are {len(given)} labels for {rows} rows.")
        for row, label in enumerate(given):
            own = tuple(part[row] for part in parts)
            self.summaries.setdefault(label, Summarizer(self._asked)).update(own)
            super().update(own)

    @property
    def class_summaries(self) -> dict[Any, Any]:
        """The statistics of each label's rows."""
        return {label: own.summary for label, own in self.summaries.items()}
