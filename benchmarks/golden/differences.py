"""How two sets of golden answers differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.golden.answers import Answers

# what a deliberate change renamed, from old to new: keys of receipts, and the names of rules that stand in them
RENAMED: dict[str, str] = {}
RENAMED_RULES: dict[str, str] = {}
WORDING = {"text", "method_chosen", "row_by_row", "scores_from"}  # free text; of "warnings" the number counts
LEFT_OUT = {"seconds", "bytes"}  # what a machine does, not what the method says
NEAR = 1e-9
ROUNDING = (" | gap", " | residual")  # what is next to nothing but rounding: compared in units of 1, or of themselves


@dataclass
class Differences:
    """One line per difference, and the largest relative one of any tensor."""

    close: float = 1e-12  # how near tensors must be, relative to their largest entry
    lines: list[str] = field(default_factory=list)
    largest: float = 0.0

    @classmethod
    def between(cls, old: Answers, new: Answers, close: float, only: list[str] | None = None) -> Differences:
        def asked(names: Any) -> set[str]:
            return {name for name in names if only is None or name.split(" | ")[0] in only}

        found = cls(close)
        found._mapping("", {k: old.plain[k] for k in asked(old.plain)}, new.plain)
        for name in sorted(asked(old.tensors) & set(new.tensors)):
            found._tensor(name, old.tensors[name], new.tensors[name])
        return found

    def _tensor(self, name: str, a: Tensor, b: Tensor) -> None:
        if a.shape != b.shape or a.dtype != b.dtype:
            self.lines.append(f"{name}: {a.dtype} {tuple(a.shape)} -> {b.dtype} {tuple(b.shape)}")
            return
        x, y = a.double(), b.double()
        same = (x == y) | (x.isnan() & y.isnan())
        apart = torch.where(same, 0.0, (x - y).abs())
        scale = float(x[x.isfinite()].abs().max()) if x.isfinite().any() else 1.0
        scale = max(scale, 1.0) if name.endswith(ROUNDING) else scale or 1.0
        worst = float(apart.max()) / scale if apart.numel() else 0.0
        worst = math.inf if math.isnan(worst) else worst
        self.largest = max(self.largest, worst)
        if worst > self.close:
            self.lines.append(f"{name}: values differ by {worst:.3g} of the largest")

    def _mapping(self, name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
        a = {RENAMED.get(key, key) if name else key: value for key, value in a.items()}
        for key in sorted(set(a) ^ set(b)):
            if key not in LEFT_OUT:
                self.lines.append(f"{name}.{key}".lstrip(".") + (": missing now" if key in a else ": new"))
        for key in sorted(set(a) & set(b) - LEFT_OUT - WORDING):
            self._value(f"{name}.{key}".lstrip("."), key, a[key], b[key])

    def _value(self, name: str, key: str, a: Any, b: Any) -> None:
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            return self._mapping(name, a, b)
        if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            if key != "warnings":
                for i, (one, other) in enumerate(zip(a, b, strict=True)):
                    self._value(f"{name}[{i}]", key, one, other)
            return None
        if key == "rule" and isinstance(a, str):
            a = RENAMED_RULES.get(a, a)
        if key == "per_row" and isinstance(a, str):
            a = RENAMED.get(a, a)
        if not _alike(a, b):
            self.lines.append(f"{name}: {a!r:.120} -> {b!r:.120}")
        return None


def _alike(a: Any, b: Any) -> bool:
    """Numbers up to 1e-9 of the larger one (or of 1), everything else exactly."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float) and a != b:
        return (math.isnan(a) and math.isnan(b)) or abs(a - b) <= NEAR * max(1.0, abs(a), abs(b))
    return bool(a == b)
