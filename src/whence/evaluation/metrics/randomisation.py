"""Whether an explanation depends on the weights at all (Adebayo et al. 2018)."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from whence.evaluation.answers.explanations import stages_of
from whence.evaluation.metrics import Asking, metric
from whence.evaluation.requests import Randomised, Result, View
from whence.registry import Bounds
from whence.util.stats import spearman


@metric(
    "model_randomisation", order=70, paper="Adebayo et al. 2018, arXiv:1810.03292", better="nearer to 0", within=(-1, 1)
)
def model_randomisation(
    view: View, *, stages: Annotated[int, Bounds(low=1)] = 4, order: Literal["cascade", "independent"] = "cascade",
    absolute: bool = True,
) -> Asking:  # fmt: skip
    """Mean rank correlation of φ with itself as weights turn random from the top down, or one stage at a time.

    It should fall to 0, and no further: −1 is the same map upside down. `absolute` ranks |φ|; the correlation of signed
    φ is given beside it.
    """
    root = view.example.root
    count = stages if root is None else len(stages_of(root, stages))
    answers = yield [Randomised(stage, stages, order == "independent") for stage in range(count)]
    here = view.settled(view.scores)
    both = {
        name: [spearman(*(pair if name == "signed" else (pair[0].abs(), pair[1].abs()))) for pair in
               ((view.settled(scores), here) for scores in answers)]
        for name in ("absolute", "signed")
    }  # fmt: skip
    chosen = both["absolute" if absolute else "signed"]
    known = [rho for rho in chosen if not math.isnan(rho)]
    value = sum(known) / len(known) if known else float("nan")
    other = [rho for rho in both["signed"] if not math.isnan(rho)]
    parts = {"undefined": float(len(chosen) - len(known))}
    if other:
        parts["signed correlation"] = sum(other) / len(other)
    return Result(value, parts, ([0, *((i + 1) / count for i in range(count))], [1.0, *chosen]))
