"""CPU time of every method in two checkouts: `python -m benchmarks.checkouts OLD NEW [--rounds 15]`.

OLD and NEW are `src` folders. Fresh processes take turns; each measures every method once, as the best of a few
repetitions in CPU time after a call to warm up, and in units of plain work done in turns with it, which a busy
neighbour slows alike. Printed are medians over rounds in milliseconds, and the ratio of the medians in those units; the
exit code is 1 where one is above 1.10.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

MODELS = ("mlp", "cnn", "bert")
LIMIT, REPEATS = 1.10, 3
FLAG = "--measure"  # what a child is told
Cost = tuple[float, float]  # seconds, and units of plain work
Costs = dict[str, list[Cost]]
HERE = Path(__file__).resolve().parents[1]


def measured() -> dict[str, Cost]:
    """What each method costs on each model, in this process."""
    import torch

    import whence
    from benchmarks.golden.answers import CHEAP
    from benchmarks.golden.models import CASES

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found: dict[str, Cost] = {}
    for name in MODELS:
        given = CASES[name]()
        for method in whence.methods:
            options: dict[str, Any] = {**given.options, **CHEAP.get(method, {}), "method": method, "progress": False}
            try:
                whence.explain(given.model, given.inputs, **options)
            except whence.WhenceError:
                continue
            call = partial(whence.explain, given.model, given.inputs, **options)
            found[f"{name} {method}"] = _cost(call, _plain)
    return found


def _cost(explain: Callable[[], Any], plain: Callable[[], Any]) -> Cost:
    """The least CPU time of a call, and that time in units of plain work done in turns with it."""
    times: list[list[float]] = [[], []]
    for _ in range(REPEATS):
        for job, kept in zip((plain, explain), times, strict=True):
            start = time.process_time()
            job()
            kept.append(time.process_time() - start)
    return min(times[1]), min(times[1]) / min(times[0])


def _plain() -> None:
    """Work that no checkout has a part in: small products and a little Python around them."""
    import torch

    x = torch.ones(8, 8, dtype=torch.float64, requires_grad=True)
    for _ in range(40):
        y = x
        for _ in range(10):
            y = torch.relu(y @ x) / 8
        torch.autograd.grad(y.sum(), x)


def child(source: Path) -> dict[str, Cost]:
    """One fresh process on one checkout."""
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.checkouts", FLAG]
    done = subprocess.run(command, env=environment, cwd=HERE, check=True, stdout=subprocess.PIPE, text=True)
    told = json.loads(done.stdout)
    if Path(told["from"]).resolve().parent.parent != source:
        raise SystemExit(f"{source} was asked for, but whence was imported from {told['from']}.")
    return told["costs"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    sources = [options.old.resolve(), options.new.resolve()]
    costs: list[Costs] = [{}, {}]
    for turn in range(options.rounds):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            for name, cost in child(sources[which]).items():
                costs[which].setdefault(name, []).append(cost)
        print(f"round {turn + 1} of {options.rounds}", file=sys.stderr, flush=True)
    return report(*costs)


def report(old: Costs, new: Costs) -> int:
    """A line per model and method, and 1 if one of them became slower than the limit or is gone."""
    failed = [name for name in old if name not in new]
    ratios = {name: _middle(new[name], 1) / _middle(old[name], 1) for name in old if name in new}
    print(f"{'model, method':40}{'old ms':>9}{'new ms':>9}{'new/old':>9}")
    for name, ratio in ratios.items():
        mark = "  above the limit" if ratio > LIMIT else ""
        print(f"{name:40}{1e3 * _middle(old[name], 0):9.2f}{1e3 * _middle(new[name], 0):9.2f}{ratio:9.3f}{mark}")
    failed += [name for name, ratio in ratios.items() if ratio > LIMIT]
    print(f"median ratio {median(ratios.values()):.3f}, largest {max(ratios.values()):.3f}")
    print(f"slower or gone: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def _middle(costs: list[Cost], part: int) -> float:
    return median(cost[part] for cost in costs)


if __name__ == "__main__":
    if sys.argv[1:] == [FLAG]:
        import whence

        print(json.dumps({"from": whence.__file__, "costs": measured()}))
    else:
        sys.exit(main())
