"""What DeepLIFT leaves of the delta, model by model, beside Captum's: the worst row, and how much cancels.

The models are those of the tests, in float32 and float64, from zero and from random references.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import Tensor

import whence
from benchmarks.deeplift import captum
from tests.test_deeplift import MADE, TRANSFORMERS, in_dtype, made, random_baseline, size
from whence.views.tables import table


def ours(model: Any, inputs: Any, target: Any, baseline: Any) -> tuple[str, str]:
    a = whence.explain(model, inputs, method="deeplift", target=target, baseline=baseline)
    assert a.gap is not None
    assert a.baseline_value is not None
    rise = (a.output_value - a.baseline_value).abs()
    return f"{float(a.gap.max()):.0e}", f"{float((size(a.values) / rise).median()):.1f}"


def theirs(model: Any, x: Tensor, baseline: Any) -> str:
    before = torch.zeros_like(x) if isinstance(baseline, int) else baseline
    try:
        return f"{float(captum(model, x, before)[1].max()):.0e}"
    except (RuntimeError, AssertionError) as error:
        return type(error).__name__


def main() -> None:
    warnings.simplefilter("ignore")
    rows = []
    for name in [*MADE, *TRANSFORMERS]:
        for far in ("zero", "random"):
            line = [name, far]
            for dtype in (torch.float32, torch.float64):
                if name in MADE:
                    model, inputs = made(name, dtype)
                    target: Any = 0
                else:
                    family = TRANSFORMERS[name]
                    model, inputs, target = family.build(family.kinds[0]).to(dtype), family.inputs(), family.target
                    inputs = in_dtype(inputs, dtype)
                baseline = 0 if far == "zero" else random_baseline(inputs)
                line += ours(model, inputs, target, baseline)[: 2 if dtype == torch.float64 else 1]
            rows.append([*line, theirs(model, inputs, baseline) if name in MADE else ""])
    print("\nDeepLIFT: the worst row's gap, and Σ|φ|/|Δf| of the median row")
    print(table(["model", "reference", "float32", "float64", "Σ|φ|/|Δf|", "Captum, float64"], rows), flush=True)


if __name__ == "__main__":
    sys.exit(main())
