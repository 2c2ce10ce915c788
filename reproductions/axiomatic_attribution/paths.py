"""Three paths from a baseline to an input, what each attributes, and that only the straight one is symmetric."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib import pyplot
from torch import Tensor, nn

import whence
from reproductions.report import BLUE, GREY, RED, Report

START, END = (0.0, 0.0), (1.0, 1.0)
PATHS: dict[str, tuple[str, list[tuple[float, float]]]] = {  # by name: colour and way-points
    "P1, x₁ first": (RED, [START, (1.0, 0.0), END]),
    "P2, straight": (BLUE, [START, END]),
    "P3, x₂ first": (GREY, [START, (0.0, 1.0), END]),
}


class Symmetric(nn.Module):
    """A function of two inputs in which they can be swapped."""

    def __init__(self, formula: str, of: Any) -> None:
        super().__init__()
        self.formula, self.of = formula, of

    def forward(self, x: Tensor) -> Tensor:
        return self.of(x[:, 0], x[:, 1])[:, None]


FUNCTIONS = [
    Symmetric("x₁ · x₂", lambda a, b: a * b),
    Symmetric("relu(x₁ + x₂ − 1)", lambda a, b: (a + b - 1).relu()),
    Symmetric("tanh(x₁ + x₂)", lambda a, b: (a + b).tanh()),
    Symmetric("max(x₁, x₂)", torch.maximum),
]


def run(report: Report) -> None:
    x, baseline = torch.tensor([END], dtype=torch.float64), torch.tensor([START], dtype=torch.float64)
    rows, found = [], {}
    for function in FUNCTIONS:
        for name, (_, points) in PATHS.items():
            way = list(torch.tensor(points, dtype=torch.float64)[:, None])
            a = whence.explain(
                function, x, method="path_integrated_gradients", target=0, tolerance=1e-4, path=way,
            )  # fmt: skip
            first, second = (float(v) for v in a.values[0])
            found[function.formula, name] = (first, second)
            total = float(function(x) - function(baseline))
            rows.append(
                [function.formula, name, f"{first:.3f}", f"{second:.3f}", f"{first + second:.3f}", f"{total:.3f}"]
            )
            report.must(f"{name} sums up on {function.formula}", abs(first + second - total) < 1e-3)
    report.table(
        "paths", ["f", "path", "φ₁", "φ₂", "φ₁ + φ₂", "f(x) − f(x′)"], rows,
        "From (0, 0) to (1, 1), where the inputs of a symmetric function are equal, and so are the baselines.",
    )  # fmt: skip
    straight = [found[function.formula, "P2, straight"] for function in FUNCTIONS]
    bent = [found[f.formula, name] for f in FUNCTIONS for name in PATHS if name != "P2, straight"]
    report.must("the straight path is symmetric", all(abs(a - b) < 1e-6 for a, b in straight))
    report.must("the bent paths are not", all(abs(a - b) > 0.1 for a, b in bent))
    report.say("All three paths sum up on every function; only the straight one gives both inputs the same.")
    _picture(report, found)


def _picture(report: Report, found: dict[tuple[str, str], tuple[float, float]]) -> None:
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for name, (colour, points) in PATHS.items():
        axes[0].plot(*zip(*points, strict=True), color=colour, marker="o", label=name)
    axes[0].annotate("baseline", START, (0.06, -0.1), fontsize=8)
    axes[0].annotate("input", END, (0.85, 1.06), fontsize=8)
    axes[0].set(title="three paths", xlabel="x₁", ylabel="x₂", xlim=(-0.2, 1.25), ylim=(-0.2, 1.25), aspect="equal")
    axes[0].legend(fontsize=7, loc="center", bbox_to_anchor=(0.62, 0.3))
    for axis, function in zip(axes[1:], FUNCTIONS[:2], strict=True):
        for place, (name, (colour, _)) in enumerate(PATHS.items()):
            axis.bar([place - 0.17, place + 0.17], found[function.formula, name], 0.3, color=colour)
            for shift, value, which in zip((-0.17, 0.17), found[function.formula, name], ("φ₁", "φ₂"), strict=True):
                axis.annotate(which, (place + shift, value + 0.03), ha="center", fontsize=8)
        axis.set_xticks(range(len(PATHS)), [name.partition(",")[0] for name in PATHS])
        axis.set(title=f"f = {function.formula}", ylim=(0, 1.15))
    report.figure(
        "paths", figure, "Three monotone paths, and what each attributes to two inputs that play the same part."
    )
