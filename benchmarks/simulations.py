"""Whether the statistics err as seldom as they promise: `python -m benchmarks.simulations [--count N] [--only PART]`.

Seeded. Scores are drawn for n rows and K methods that are equally good; what counts is how often any of them is called
worse than the best, better than the control, or different from another, how often a 95 % interval holds what it is of,
and how often a method that is better is told apart. `noise` goes through `whence.recommend`. `--keep FILE` holds
finished cells, so that a run goes on where it stopped; `--write` puts the tables into docs/evaluation.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import whence
from whence.evaluation import bootstrap, evidence, permutation

Array = np.ndarray[Any, Any]
ROWS, METHODS = (8, 16, 64, 300), (2, 12, 30)
DRAWS = 199  # of a test, where errors are counted: they are the same with more, only the power is higher
CONTROLS = 4
DOCS = Path(__file__).parents[1] / "docs" / "evaluation.md"


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


def pairs(count: int, kind: Callable[..., Array], n: int, k: int, copies: bool) -> float:
    """The share of simulations in which any two equal methods are told apart by the test of all pairs."""
    draw, wrong = np.random.default_rng(n * 1000 + k), 0
    weights = repeated(n) if copies else None
    for i in range(count):
        p, _ = permutation.pairs(kind(draw, n // 2 if copies else n, k), weights, seed=i, draws=DRAWS)
        wrong += bool((p <= permutation.ERROR).any())
    return wrong / count


def alike(count: int, kind: Callable[..., Array], order: str, n: int, k: int) -> tuple[float, float]:
    """How often the interval of Kendall's τ holds the τ of the true means, and how long it is (2 says nothing).

    The methods' means by two ways of removing are spread over one deviation, in the same order, in orders that have
    nothing to do with each other (τ as near to 0 as it can be), or in reverse.
    """
    draw, held, length = np.random.default_rng(n * 1000 + k), 0, 0.0
    first = np.linspace(0, 1, k)
    second = {"the same": first, "reversed": first[::-1], "unrelated": first[unrelated(k)]}[order]
    truth = float(evidence.kendall([first[None], second[None]], np.ones((1, 1)))[0, 0])
    for i in range(count):
        gains = [mean + kind(draw, n, k) for mean in (first, second)]
        _, low, high = evidence.tau(gains, np.ones(n), seed=i, draws=DRAWS)
        length += high - low
        held += low - 1e-9 <= truth <= high + 1e-9
    return held / count, length / count


def unrelated(k: int) -> Array:
    """An order whose τ with 0 … k − 1 is as near to 0 as that of any order that was drawn."""
    draw = np.random.default_rng(k)
    orders = [draw.permutation(k) for _ in range(200)]
    upper = np.triu_indices(k, 1)
    return min(orders, key=lambda order: abs(float(np.sign(order[upper[1]] - order[upper[0]]).sum())))


# ---- tables ----

Cell = tuple[str, str, int, int, Callable[[], list[float]]]  # part, line, K, n, and what gives its numbers


def cells(count: int) -> Iterator[Cell]:
    """Everything that is simulated."""
    lines = [(name, kind, mean, k, False) for name, (kind, mean) in KINDS.items() for k in METHODS]
    lines += [("normal, equal rows", normal, 0.0, k, True) for k in METHODS]
    others = [(name, kind, 0.0, 12, False) for name, kind in OTHERS.items()]
    for name, kind, _, k, copies in lines + others:
        for n in ROWS:
            yield "errors", name, k, n, lambda a=(kind, n, k, copies): [*errors(count, *a)]
    for name, kind, mean, k, copies in lines:
        for n in ROWS:
            yield "coverage", name, k, n, lambda a=(kind, mean, n, k, copies): [*coverage(count, *a)]
    for name, kind, _, k, copies in lines + others:
        for n in ROWS if k == METHODS[1] else ():
            yield "pairs", name, k, n, lambda a=(kind, n, k, copies): [pairs(count, *a)]
    orders = {"the same order": ("the same", normal), "the same order, heavy-tailed": ("the same", heavy),
              "unrelated orders": ("unrelated", normal), "reversed": ("reversed", normal)}  # fmt: skip
    for (name, (order, kind)), k, n in itertools.product(orders.items(), (4, 12), ROWS):
        yield "tau", name, k, n, lambda a=(kind, order, n, k): [*alike(count, *a)]
    yield "power", "normal", 12, 64, lambda: [power(count)]
    yield "noise", "fresh noise", 12, 16, lambda: [noise(max(1, count // 10))]


def simulated(
    count: int, only: str | None, keep: Path | None
) -> dict[str, dict[tuple[str, int], dict[int, list[float]]]]:
    """The numbers by part, by line and K, by n; told as they come, and kept in a file if there is one."""
    known = {}
    if keep is not None and keep.exists():
        known = {tuple(key): found for *key, found in map(json.loads, keep.read_text().splitlines())}
    tables: dict[str, dict[tuple[str, int], dict[int, list[float]]]] = {}
    for part, line, k, n, job in cells(count):
        if only not in (None, part):
            continue
        key, start = (count, part, line, k, n), time.process_time()
        if key not in known:
            known[key] = job()
            print(*key, *(f"{x:.4f}" for x in known[key]), f"{time.process_time() - start:.0f} s", flush=True)
            if keep is not None:
                with keep.open("a") as file:
                    file.write(json.dumps([*key, known[key]]) + "\n")
        tables.setdefault(part, {}).setdefault((line, k), {})[n] = known[key]
    return tables


def percent(numbers: list[float]) -> str:
    return " / ".join(f"{100 * share:.1f}" for share in numbers)


def held(numbers: list[float]) -> str:
    """The share of intervals that hold, and how many there were, if not all."""
    share, given = numbers
    return f"{100 * share:.1f}" + ("" if given > 0.9995 else f" (of {100 * given:.0f} %)")


SHOWN: dict[str, tuple[str, Callable[[list[float]], str]]] = {
    "errors": ("called worse than the best / better than random, %", percent),
    "pairs": ("any pair told apart, %", percent),
    "coverage": ("95 % intervals that hold the mean, %", held),
    "tau": ("intervals that hold Kendall's τ, % / their mean length", lambda x: f"{100 * x[0]:.1f} / {x[1]:.2f}"),
}


def written(tables: dict[str, dict[tuple[str, int], dict[int, list[float]]]], part: str, count: int) -> str:
    """A part as Markdown: a line per kind of scores and number of methods, a column per number of rows."""
    if part not in SHOWN:
        ((_, found),) = tables[part].items()
        ((_, (share,)),) = found.items()
        what = {
            "power": f"Told apart from all others, at n = 64 among 12: {100 * share:.1f} % of {count} (goal 80).",
            "noise": f"Noise was recommended at {100 * share:.1f} % of {max(1, count // 10)} seeds (goal 8 at most).",
        }
        return what[part]
    title, shown = SHOWN[part]
    lines = [f"| {title} | K | {' | '.join(f'n = {n}' for n in ROWS)} |", f"|---|---|{'---|' * len(ROWS)}"]
    for (name, k), found in tables[part].items():
        lines.append(f"| {name} | {k} | {' | '.join(shown(found[n]) for n in ROWS)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--count", type=int, default=2000, help="simulations of a cell (of intervals: intervals)")
    reader.add_argument("--only", choices=(*SHOWN, "power", "noise"))
    reader.add_argument("--keep", type=Path, help="a file for finished cells")
    reader.add_argument("--write", action="store_true", help="put the tables into docs/evaluation.md")
    options = reader.parse_args(arguments)
    tables = simulated(options.count, options.only, options.keep)
    for part in tables:
        told = written(tables, part, options.count)
        print(f"\n{told}")
        if options.write:
            begin, end = (f"<!-- simulated {part}: {word} -->" for word in ("begin", "end"))
            before, rest = DOCS.read_text(encoding="utf-8").split(begin)
            DOCS.write_text(f"{before}{begin}\n{told}\n{end}{rest.split(end)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
