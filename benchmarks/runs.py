"""What data-set runs cost: `python -m benchmarks.runs [overhead] [memory] [workers] [shards] [ray] [--rows N]`.

Overhead is CPU time of an inline run over that of a loop that calls `explain` on the same batches and drops the
answers, in turns; and what a run takes beside the explanations in it, by the same clock. Memory is the peak of a
process, for as many rows and for ten times as many. Workers is the elapsed time of a run by one worker process over
that by two: it says something on a machine that does nothing else. Shards is what a shard costs beyond its rows, and
Ray what it costs the driver, with Ray and with processes.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import whence
from whence.runs import answers
from whence.runs.plan import planned
from whence.runs.rows import cut, read

METHODS = ["gradient", "integrated_gradients"]
MODEL = "benchmarks.runs:small"
BATCH = 32


def small() -> nn.Module:
    """A model that costs next to nothing, so that what is measured is the run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).eval()


def numbers(path: Path, count: int) -> Path:
    """Rows of six features."""
    draw = torch.Generator().manual_seed(0)
    with path.open("w") as file:
        for _ in range(count):
            file.write(json.dumps({"inputs": torch.randn(6, generator=draw).tolist()}) + "\n")
    return path


WORDS = "a warm little film that never quite finds its way but moves along and is often funny and sad".split()


def texts(path: Path, count: int) -> Path:
    """Rows of 3 to 18 words."""
    with path.open("w") as file:
        for number in range(count):
            start, length = number * 7 % len(WORDS), 3 + number % 16
            file.write(json.dumps({"text": " ".join((WORDS * 2)[start : start + length])}) + "\n")
    return path


# ---- overhead ----


def overhead(folder: Path, count: int, rounds: int = 3) -> str:
    """CPU time of a run over that of the same calls of explain."""
    model, path = whence.load("zoo:sentiment"), texts(folder / "rows.jsonl", count)
    rows = [read(json.loads(line), place, "text", {}, "") for place, line in enumerate(path.open())]
    shards = [rows[start : start + 256] for start in range(0, count, 256)]

    def loop() -> None:
        for shard in shards:
            for batch in cut(shard, BATCH):
                for method in METHODS:
                    whence.explain(model, [row.inputs for row in batch], method=method, progress=False)

    numbered = iter(range(100))

    def run() -> None:
        whence.run(model, path, methods=METHODS, out=folder / f"run-{next(numbered)}", progress=False)

    taken: dict[str, list[float]] = {"loop": [], "run": []}
    beside = []  # of a run, relative to the explanations in it: no two turns on a busy machine are alike
    for _ in range(rounds):
        for name, job in (("loop", loop), ("run", run)):
            with _timed(answers, "explain") as inside:
                taken[name].append(cpu(job))
        beside.append(taken["run"][-1] / sum(inside) - 1)
    ratio = statistics.median(b / a for a, b in zip(*taken.values(), strict=True))
    a, b = (statistics.median(taken[name]) for name in taken)
    return (
        f"overhead: {count} texts x {len(METHODS)} methods: loop {a:.1f} s, run {b:.1f} s of CPU, ratio {ratio:.3f}; "
        f"of the run's own explanations {statistics.median(beside):.1%}"
    )


@contextmanager
def _timed(module: Any, name: str) -> Iterator[list[float]]:
    """The CPU seconds of each call of a module's function."""
    plain, taken = getattr(module, name), []

    def timed(*args: Any, **options: Any) -> Any:
        start = time.process_time()
        try:
            return plain(*args, **options)
        finally:
            taken.append(time.process_time() - start)

    setattr(module, name, timed)
    try:
        yield taken
    finally:
        setattr(module, name, plain)


def cpu(job: Callable[[], Any]) -> float:
    start = time.process_time()
    job()
    return time.process_time() - start


# ---- memory ----


def memory(folder: Path, count: int) -> str:
    """Peak resident size of a run over some rows, and over ten times as many."""
    peaks = {}
    for rows in (count, 10 * count):
        data = numbers(folder / f"{rows}.jsonl", rows)
        command = [sys.executable, "-m", "benchmarks.runs", "--measured", str(data), str(folder / f"run-{rows}")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[rows] = float(done.stdout.split()[-1])
    few, many = peaks.values()
    return f"memory: {count} rows {few:.0f} MB, {10 * count} rows {many:.0f} MB: {many - few:+.0f} MB"


def measured(data: str, out: str) -> None:
    """One run, and this process's peak in MB."""
    whence.run(MODEL, data, methods=["gradient"], out=out, batch_size=256, progress=False)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


# ---- workers ----


def workers(folder: Path, count: int) -> str:
    """Elapsed time with one worker process over that with two; each has one thread."""
    path, taken = texts(folder / "rows.jsonl", count), {}
    for number in (1, 2):
        start = time.perf_counter()
        whence.run(
            "zoo:sentiment", path, methods=METHODS, out=folder / f"run-{number}", executor="process", workers=number,
            progress=False,
        )  # fmt: skip
        taken[number] = time.perf_counter() - start
    return f"workers: one {taken[1]:.1f} s, two {taken[2]:.1f} s: {taken[1] / taken[2]:.2f} times as fast"


# ---- shards ----


def shards(folder: Path, count: int) -> str:
    """What a shard costs here beyond its rows, and how fast a plan is made."""
    path, numbered, taken = numbers(folder / "rows.jsonl", count), iter(range(100)), {1: [], 64: []}  # type: ignore
    for _ in range(4):
        for parts, found in taken.items():
            size, out = count // parts, folder / f"run-{next(numbered)}"
            found.append(cpu(lambda size=size, out=out: _inline(path, out, size)))
    each = (min(taken[64]) - min(taken[1])) / 63
    large = numbers(folder / "large.jsonl", 100 * count)
    seconds = cpu(lambda: planned([(str(large), "jsonl")], 256))
    rate = large.stat().st_size / 1e6 / seconds
    return f"shards: {each * 1e3:.1f} ms of CPU for a shard beyond its rows; a plan is made at {rate:.0f} MB/s"


def _inline(path: Path, out: Path, size: int) -> None:
    whence.run(MODEL, path, methods=["gradient"], out=out, shard_rows=size, batch_size=32)


# ---- Ray ----


def ray(folder: Path, count: int) -> str:
    """Until the only shard is done, and what more shards cost the driver: by a process, and by an actor."""
    path, found = numbers(folder / "rows.jsonl", count), []
    for executor in ("process", "ray"):
        elapsed, spent = [], []
        for parts in (1, 1, 64):  # the first one imports what is needed
            start, out = time.perf_counter(), folder / f"{executor}-{len(elapsed)}"
            how: dict[str, Any] = {"executor": executor, "workers": 1, "shard_rows": count // parts, "out": out}
            spent.append(cpu(lambda how=how: whence.run(MODEL, path, methods=["gradient"], **how)))
            elapsed.append(time.perf_counter() - start)
        each = (spent[2] - spent[1]) / 63
        found.append(f"{executor}: {elapsed[1]:.1f} s elapsed for one shard, {each * 1e3:.2f} ms of CPU in the driver "
                     f"and {(elapsed[2] - elapsed[1]) / 63 * 1e3:.0f} ms elapsed for each further one")  # fmt: skip
    return "; ".join(found)


MEASURES: dict[str, tuple[Callable[[Path, int], str], int]] = {
    "overhead": (overhead, 3072), "memory": (memory, 10_000), "workers": (workers, 12_288), "shards": (shards, 2048),
    "ray": (ray, 2048),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=", ".join(MEASURES))
    parser.add_argument("--rows", type=int)
    parser.add_argument("--measured", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.measured:
        measured(*options.measured)
        return
    for name in options.names or MEASURES:
        measure, count = MEASURES[name]
        with tempfile.TemporaryDirectory() as folder:
            print(measure(Path(folder), options.rows or count), flush=True)


if __name__ == "__main__":
    main()
