"""The metrics: one small file per family. A metric maps a View of one row, as one method explained it, to a Result.

It asks for what it needs (perturbed copies, other explanations) by yielding requests: `evaluation.requests`. Facts in
the registry: `better` ("higher", "lower" or "nearer to 0"), `needs` (what rows must come with), `of` ("ids", "values",
"images"), `proportion` where a row's value is 0 or 1, `within` (what no score can pass; `within_probability` where that
holds for scores read off probabilities only).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from whence.evaluation.requests import Result
from whence.registry import Registry

Asking = Generator[list[Any], list[Any], Result]
Metric = Callable[..., Any]  # (view, *, …) → a Result, or a generator of requests that returns one
metrics: Registry[Metric] = Registry("metric", package=__name__)
metric = metrics.register
