"""Whether the statistics err as seldom as they promise: `python -m benchmarks.simulations [--count N] [--only PART]`.

Seeded; tables in Markdown, which docs/evaluation.md holds. Scores are drawn for n rows and K methods that are equally
good; what counts is how often any of them is called worse than the best, or better than the control, how often a 95 %
interval holds the mean, and how often a method that is better is told apart. `noise` goes through `whence.recommend`.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import whence
from whence.evaluation import bootstrap, permutation

Array = np.ndarray[Any, Any]
ROWS, METHODS = (8, 16, 64, 300), (2, 12, 30)
DRAWS = 199  # of a test, where errors are counted: they are the same with more, only the power is higher
CONTROLS = 4


def normal(draw: np.random.Generator, n: int, k: int) -> Array:
    return draw.normal(size=(n, k))


def lognormal(draw: np.random.Generator, n: int, k: int) -> Array:
    return draw.lognormal(size=(n, k))


def heavy(draw: np.random.Generator, n: int, k: int) -> Array:
    """Student's t with 3 degrees of freedom."""
    return draw.standard_t(3, size=(n, k))


def proportion(draw: np.random.Generator, n: int, k: int) -> Array:
    return (draw.random((n, k)) < 0.9).astype(float)


def uneven(draw: np.random.Generator, n: int, k: int) -> Array:
    """Every other method scatters four times as much."""
    return draw.normal(size=(n, k)) * np.where(np.arange(k) % 2, 1, 4)


def skewed(draw: np.random.Generator, n: int, k: int) -> Array:
    """Equal means of lognormals from almost even (σ = 0.3) to very skewed (σ = 1.3): what no test of means survives."""
    s = np.linspace(0.3, 1.3, k)
    return np.exp(draw.normal(size=(n, k)) * s - s * s / 2)


KINDS: dict[str, tuple[Callable[..., Array], float]] = {
    "normal": (normal, 0.0),
    "lognormal": (lognormal, math.exp(0.5)),
    "heavy-tailed (t, 3 df)": (heavy, 0.0),
    "proportion (0.9)": (proportion, 0.9),
}
OTHERS = {"uneven spread": uneven, "uneven skew": skewed}


def repeated(n: int) -> Array:
    """How often each distinct row comes where n rows are copies of n / 2: once or three times."""
    return np.where(np.arange(n // 2) % 2, 1.0, 3.0)


def errors(count: int, kind: Callable[..., Array], n: int, k: int, copies: bool) -> tuple[float, float]:
    """The share of simulations in which equal methods are told apart: from the best, and from the control."""
    draw, wrong = np.random.default_rng(n * 1000 + k), np.zeros(2)
    weights = repeated(n) if copies else None
    for i in range(count):
        scores = kind(draw, n // 2 if copies else n, k + CONTROLS)
        own, control = scores[:, :k], scores[:, k:]
        best = permutation.behind_best(own, weights, seed=i, draws=DRAWS)
        above = permutation.above_control(own, control, weights, seed=i, draws=DRAWS)
        wrong += [(best <= permutation.ERROR).any(), (above <= permutation.ERROR).any()]
    return float(wrong[0] / count), float(wrong[1] / count)


def coverage(count: int, kind: Callable[..., Array], mean: float, n: int, k: int, copies: bool) -> tuple[float, float]:
    """How often the interval holds the mean, where there is one, and how often there is one."""
    draw, held, given = np.random.default_rng(n * 1000 + k), 0, 0
    weights = repeated(n) if copies else None
    for i in range(-(-count // k)):  # each with k independent columns
        scores = kind(draw, n // 2 if copies else n, k)
        if kind is proportion:
            w = np.ones(len(scores)) if weights is None else weights
            rows = bootstrap.effective(len(scores), w)
            low, high = np.array([bootstrap.wilson(p, rows) for p in w @ scores / w.sum()]).T
        else:
            low, high = bootstrap.interval(scores, weights, seed=i)
        given += int((~np.isnan(low)).sum())
        held += int(((low <= mean) & (mean <= high)).sum())
    return held / given, given / (-(-count // k) * k)


def power(count: int, n: int = 64, k: int = 12, effect: float = 0.5) -> float:
    """How often a method that is better by `effect` deviations of the paired difference is told apart from all."""
    draw, told = np.random.default_rng(0), 0
    for i in range(count):
        scores = normal(draw, n, k)
        scores[:, 0] += effect * math.sqrt(2)
        told += bool((permutation.behind_best(scores, seed=i)[1:] <= permutation.ERROR).all())
    return told / count


def noise(seeds: int, methods: int = 12, rows: int = 16) -> float:
    """How often `recommend` takes one of the methods where all of them are fresh noise."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).eval()
    taken = 0
    for seed in range(seeds):
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(rows, 12, generator=draw)
        given = {
            f"noise {i}": lambda model, x, target, draw=draw: torch.randn(x.shape, generator=draw)
            for i in range(methods)
        }
        taken += whence.recommend(model, x, methods=given, seed=seed, progress=False).best is not None
    return taken / seeds


# ---- tables ----


def table(title: str, cell: Callable[[Callable[..., Array], float, int, int, bool], str], others: bool) -> None:
    """A line per kind of scores and number of methods, a column per number of rows."""
    print(f"\n| {title} | K | {' | '.join(f'n = {n}' for n in ROWS)} |\n|---|---|{'---|' * len(ROWS)}", flush=True)
    kinds = [(name, kind, mean, k, False) for name, (kind, mean) in KINDS.items() for k in METHODS]
    kinds += [("normal, equal rows", normal, 0.0, k, True) for k in METHODS]
    kinds += [(name, kind, 0.0, 12, False) for name, kind in OTHERS.items() if others]
    for name, kind, mean, k, copies in kinds:
        print(f"| {name} | {k} | {' | '.join(cell(kind, mean, n, k, copies) for n in ROWS)} |", flush=True)


def main(arguments: list[str] | None = None) -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--count", type=int, default=2000, help="simulations of a cell")
    reader.add_argument("--only", choices=("errors", "coverage", "power", "noise"))
    options = reader.parse_args(arguments)
    count, start = options.count, time.process_time()

    def wrong(kind: Callable[..., Array], _: float, n: int, k: int, copies: bool) -> str:
        return " / ".join(f"{100 * share:.1f}" for share in errors(count, kind, n, k, copies))

    def held(kind: Callable[..., Array], mean: float, n: int, k: int, copies: bool) -> str:
        share, given = coverage(count, kind, mean, n, k, copies)
        return f"{100 * share:.1f}" + ("" if given > 0.9995 else f" (of {100 * given:.0f} %)")

    if options.only in (None, "errors"):
        table("called worse than the best / better than random, %", wrong, others=True)
    if options.only in (None, "coverage"):
        table("95 % intervals that hold the mean, %", held, others=False)
    if options.only in (None, "power"):
        print(f"\nPower: {100 * power(count):.1f} % (goal 80)")
    if options.only in (None, "noise"):
        print(f"\nNoise recommended: {100 * noise(max(1, count // 10)):.1f} % of {max(1, count // 10)} seeds (goal 8)")
    print(f"\n{count} simulations (of intervals: intervals) a cell, {time.process_time() - start:.0f} s")


if __name__ == "__main__":
    main()
