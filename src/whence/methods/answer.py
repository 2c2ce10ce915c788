"""What a method gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from whence.util.receipt import Later


@dataclass(frozen=True, eq=False)
class Answer:
    """The values of a method, and what goes with them into the attribution and its receipt.

    A method that has nothing else to say may return its values alone, as a dict.
    """

    values: Mapping[str, Tensor]  # (rows, k, …) for each explained value
    baseline_score: Tensor | None = None  # (rows, k): f(x'), where the method ran the model there
    start_score: Tensor | None = None  # (rows, k): f where the method started, which stands in for f(x')
    extras: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)  # more numbers, each shaped like `values`
    per_row: Mapping[str, Later | Sequence[Any]] = field(default_factory=dict)  # receipt entries with one item per row
    overall: Mapping[str, Any] = field(default_factory=dict)  # receipt entries about the run as a whole
    sums: bool = True  # False: values do not sum to the score's change, although the method's otherwise do
    keeps_padding: bool = False  # what a mask hides has scores too, and they are to be shown
