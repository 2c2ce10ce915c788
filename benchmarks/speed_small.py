"""Rows of the table of speeds: what a call costs on small models, windows on images, and the import."""

from __future__ import annotations

import compileall
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import whence
from benchmarks.measure import Line, made_of, milliseconds, plain, ratios, times

LEAST, ROUNDS = 0.02, 15  # seconds of a turn, turns


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
    ).eval()


def small_cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 64, 10),
    ).eval()  # fmt: skip


def captum_job(name: str, model: nn.Module, x: Tensor, **options: Any) -> Callable[[], Any]:
    """A method of Captum's for the first class, as its users call it."""
    import captum.attr

    method = getattr(captum.attr, name)(model)
    return lambda: method.attribute(x.clone().requires_grad_(), target=0, **options)


def small_mlp() -> list[Line]:
    """One row through three hidden layers: what is left is the cost of a call."""
    model, x = mlp(), torch.randn(1, 20)
    aims = {"gradient": ("Saliency", 1.2), "deeplift": ("DeepLift", 2.0), "lrp": ("LRP", 2.2)}
    jobs: dict[str, Callable[[], Any]] = {"plain": lambda: plain(model, x)}
    for name, (peer, _) in aims.items():
        jobs[name] = partial(whence.explain, model, x, method=name, target=0)
        jobs[peer] = captum_job(peer, model, x)
    taken = times(jobs, ROUNDS, LEAST)
    cost, to_plain = milliseconds(taken), ratios(taken)
    counts = {name: made_of(jobs[name], jobs["plain"]) for name in aims}
    return [
        Line(f"{name}, MLP, one row, ms", cost[name], cost[peer], aim, f"{to_plain[name]:.1f} fb; {counts[name]}")
        for name, (peer, aim) in aims.items()
    ]


def small_cnn_row() -> list[Line]:
    model, x = small_cnn(), torch.randn(1, 3, 32, 32)
    jobs = {
        "plain": lambda: plain(model, x),
        "gradient": partial(whence.explain, model, x, method="gradient", target=0),
        "Saliency": captum_job("Saliency", model, x),
    }
    taken = times(jobs, ROUNDS, LEAST)
    found, cost = ratios(taken), milliseconds(taken)
    extra = f"{cost['gradient']:.2f} ms; {made_of(jobs['gradient'], jobs['plain'])}"
    return [Line("gradient, small CNN, one row, fb", found["gradient"], found["Saliency"], 2, extra)]


def occlusion() -> list[Line]:
    """49 windows of 8 × 8 on one image, which Captum runs in one batch, too."""
    model, x = small_cnn(), torch.randn(1, 3, 32, 32)
    options = {"sliding_window_shapes": (3, 8, 8), "strides": (3, 4, 4), "perturbations_per_eval": 49}
    jobs = {
        "plain": lambda: plain(model, x),
        "whence": partial(whence.explain, model, x, method="occlusion", target=0),
        "captum": captum_job("Occlusion", model, x, **options),
        "forward": lambda: _forward(model, x.expand(49, -1, -1, -1).contiguous()),
    }
    cost = milliseconds(times(jobs, ROUNDS, LEAST))
    floor = f"one forward pass of 49 rows takes {cost['forward']:.1f} ms; {made_of(jobs['whence'], jobs['forward'])}"
    return [Line("occlusion, small CNN, one row, ms", cost["whence"], cost["captum"], 14, floor)]


@torch.no_grad()
def _forward(model: nn.Module, x: Tensor) -> Any:
    return model(x)


IMPORTS = {"torch": "import torch, numpy", "whence": "import whence; whence.explain", "alone": "import whence"}


def imported() -> list[Line]:
    """What `whence.explain` needs on top of torch, in fresh processes that take turns."""
    compileall.compile_dir(Path(whence.__file__).parent, quiet=1)  # as an installation does
    taken: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(ROUNDS):
        for name, statement in IMPORTS.items():
            code = f"{statement}; import time; print(time.process_time())"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            taken[name].append(float(done.stdout))
    more = median(b - a for a, b in zip(taken["torch"], taken["whence"], strict=True))
    others = f"torch and NumPy {median(taken['torch']):.2f} s, `import whence` alone {median(taken['alone']):.2f} s"
    return [Line("import whence.explain, s beyond torch", more, None, 0.1, others)]


ROWS = {"mlp": small_mlp, "cnn": small_cnn_row, "occlusion": occlusion, "import": imported}
