"""A metric as it was asked for: a column of the scoreboard."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.evaluation.bootstrap import Array
from whence.evaluation.fingerprint import said


@dataclass(frozen=True, eq=False)
class Column:
    """A metric as it was asked for."""

    name: str
    metric: str
    params: Mapping[str, Any]
    facts: Mapping[str, Any]

    @property
    def better(self) -> str:
        """ "higher", "lower" or "nearer to 0"."""
        return str(self.facts["better"])

    def gain(self, values: Any) -> Any:
        """Scores turned so that more is better."""
        return {"higher": values, "lower": -values}.get(self.better, -abs(values))

    def held(self, low: Array, high: Array, curve: bool = False) -> tuple[Array, Array]:
        """Ends of intervals, held within what a score, or a point of its curve, can be; NaN stays."""
        least, most = self.facts.get("within") or (None, None)
        if self.params.get("output", "probability") == "probability":
            least, most = self.facts.get("within_probability") or (least, most)
        if curve and least == 0 and most is not None:
            most = 1  # an accuracy or a probability, whatever their area is counted in
        least, most = (-math.inf if least is None else least, math.inf if most is None else most)
        return np.maximum(low, least), np.minimum(high, most)

    @property
    def said(self) -> list[Any]:
        return [self.name, self.metric, said(self.params)]
