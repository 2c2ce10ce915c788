"""A billion rows on 10 to 10,000 workers, simulated: `python -m benchmarks.scale [--rate R] [--markdown]`.

Every shard is an event: a worker asks the driver for one, which answers one request at a time; it explains the rows,
writes the part, and asks again. Machines die at random, each with all its workers; what those were doing is lost, and
new workers load the model. The rates are those which `python -m benchmarks.runs` measures, given as options; nothing is
fitted. The drawing of deaths is seeded, so that the same options print the same table.
"""

from __future__ import annotations

import argparse
import bisect
import heapq
import random
from dataclasses import dataclass

DEATHS = 3  # as in whence.runs.executors
PER_MACHINE = 8  # workers
HEADS = (
    "workers", "rows per shard", "a machine dies every", "hours", "efficiency", "lost", "waiting for the driver",
    "lost shards", "set aside", "files",
)  # fmt: skip


@dataclass(frozen=True)
class Rates:
    """Seconds, unless it says otherwise."""

    rows: float = 80.0  # rows explained by one worker in a second
    start: float = 20.0  # until a worker has loaded the model
    shard: float = 0.02  # of a shard beyond its rows: open, write, sync
    driver: float = 0.0016  # of the driver's own time for a shard: Ray's
    survey: float = 200e6  # bytes of data that the driver reads in a second to make the plan
    row_bytes: float = 200.0
    entry: float = 320.0  # bytes of the driver's memory for a shard of the plan


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    hours: float
    efficiency: float  # of the workers' time, the part that explained rows which were kept
    lost: float  # the part that explained rows which were lost
    waiting: float  # the part that waited for the driver
    deaths: int
    aside: int  # shards that met three deaths
    files: int
    plan_minutes: float
    driver_megabytes: float


class Machines:
    """When each machine dies: a Poisson process of its own."""

    def __init__(self, mean: float, start: float, draw: random.Random) -> None:
        self.mean, self.start, self.draw = mean, start, draw
        self.deaths: dict[int, list[float]] = {}

    def next(self, machine: int, now: float) -> float:
        """The first death after a moment."""
        known = self.deaths.setdefault(machine, [self.start + self.draw.expovariate(1 / self.mean)])
        while known[-1] <= now:
            known.append(known[-1] + self.draw.expovariate(1 / self.mean))
        return known[bisect.bisect_right(known, now)]


def simulated(total: int, workers: int, shard_rows: int, mean_hours: float, rates: Rates, seed: int = 0) -> Outcome:
    """One run, shard by shard."""
    draw = random.Random(f"{seed} {workers} {shard_rows} {mean_hours}")
    shards = -(-total // shard_rows)
    work = shard_rows / rates.rows
    plan = total * rates.row_bytes / rates.survey
    machines = Machines(mean_hours * 3600, plan, draw)
    ready = [(plan + rates.start, number) for number in range(min(workers, shards))]
    heapq.heapify(ready)
    left = shards  # that nobody had
    again: list[tuple[float, int]] = []  # those that were lost: when, and how often
    free = end = plan
    lost = waiting = 0.0
    deaths = aside = 0
    while left or again:
        now, number = heapq.heappop(ready)
        known = bool(again) and again[0][0] <= now
        if not known and not left:
            heapq.heappush(ready, (again[0][0], number))  # until a death is noticed
            continue
        free = max(now, free) + rates.driver
        waiting += free - now
        before = heapq.heappop(again)[1] if known else 0
        left -= not known
        done, dies = free + work + rates.shard, machines.next(number // PER_MACHINE, now)
        if dies < done:  # before the shard is written
            lost += min(max(dies - free, 0), work)
            deaths += 1
            aside += before + 1 == DEATHS
            if before + 1 < DEATHS:
                heapq.heappush(again, (max(dies, free), before + 1))
            done = max(dies, free) + rates.start
        else:
            end = max(end, done)
        heapq.heappush(ready, (done, number))
    whole = (end - plan) * workers
    return Outcome(
        end / 3600, (shards - aside) * work / whole, lost / whole, waiting / whole, deaths, aside, shards, plan / 60,
        shards * rates.entry / 1e6,
    )  # fmt: skip


def table(total: int, rates: Rates, seed: int) -> list[str]:
    """A line for each number of workers, size of shards, and mean time between deaths."""
    lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    for workers in (10, 100, 1000, 10_000):
        for shard_rows in (1024, 8192, 65_536):
            for hours in (6, 168):
                o = simulated(total, workers, shard_rows, hours, rates, seed)
                lines.append(
                    f"| {workers:,} | {shard_rows:,} | {hours} h | {o.hours:,.1f} | {o.efficiency:.1%} | {o.lost:.2%} "
                    f"| {o.waiting:.1%} | {o.deaths:,} | {o.aside} | {o.files:,} |"
                )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=0)
    for name, value in vars(Rates()).items():
        parser.add_argument(f"--{name.replace('_', '-')}{'-rate' if name == 'rows' else ''}", type=float, default=value)
    options = parser.parse_args()
    rates = Rates(
        options.rows_rate, options.start, options.shard, options.driver, options.survey, options.row_bytes,
        options.entry,
    )  # fmt: skip
    print("\n".join(table(options.rows, rates, options.seed)))
    small = simulated(options.rows, 10, 1024, 168, rates, options.seed)
    print(f"\nThe plan is made in {small.plan_minutes:.0f} minutes; 1,024 rows per shard take the driver "
          f"{small.driver_megabytes:,.0f} MB.")  # fmt: skip
    most = 1024 / rates.rows / rates.driver
    print(f"The driver answers {1 / rates.driver:,.0f} requests a second: with 1,024 rows per shard it is the limit "
          f"from {most:,.0f} workers on.")  # fmt: skip


if __name__ == "__main__":
    main()
