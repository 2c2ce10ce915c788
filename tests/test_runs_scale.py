"""The simulation of large runs: against what can be worked out by hand, and the same for the same seed."""

from __future__ import annotations

import pytest

from benchmarks.scale import Rates, simulated

RATES = Rates(rows=100.0, start=20.0, shard=0.5, driver=0.25, survey=1e6, row_bytes=100.0)
NEVER = 1e12  # hours


def test_without_deaths_the_time_is_that_of_the_shards() -> None:
    done = simulated(8000, 1, 1000, NEVER, RATES)
    seconds = 0.8 + 20 + 8 * (0.25 + 10 + 0.5)  # the plan, the start, and eight shards
    assert done.hours == pytest.approx(seconds / 3600)
    assert done.efficiency == pytest.approx(8 * 10 / (seconds - 0.8))
    assert (done.deaths, done.aside, done.files, done.lost) == (0, 0, 8, 0)


def test_workers_that_the_driver_cannot_serve_wait() -> None:
    """Fifty workers want a shard every 10.5 s, but the driver answers one in 0.25 s."""
    few, many = (simulated(2_000_000, workers, 1000, NEVER, RATES) for workers in (10, 50))
    assert few.waiting < 0.05 < many.waiting
    assert many.hours * 3600 > 2000 * 0.25


def test_deaths_cost_what_was_not_written() -> None:
    calm, rough = (simulated(2_000_000, 16, 1000, hours, RATES) for hours in (NEVER, 0.02))
    assert rough == simulated(2_000_000, 16, 1000, 0.02, RATES)
    assert rough != simulated(2_000_000, 16, 1000, 0.02, RATES, seed=1)
    assert rough.hours > calm.hours
    assert rough.deaths > 0 < rough.lost
    assert rough.efficiency < calm.efficiency
    p = rough.deaths / (2000 + rough.deaths)  # a shard meets three deaths with about p³
    assert rough.aside < 2000 * 6 * p**3
