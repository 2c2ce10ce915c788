"""What jobs cost, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

ROUNDS = 7


def plain(model: nn.Module, x: Tensor) -> None:
    leaf = x.detach().clone().requires_grad_()
    torch.autograd.grad(model(leaf)[:, 0].sum(), leaf)


def measure(jobs: dict[str, Callable[[], Any]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median ratio of each job's time to the job "plain" of the same round."""
    ratios: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()  # warm up
    for _ in range(rounds):
        times = {}
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            times[name] = time.perf_counter() - start
        for name in jobs:
            ratios[name].append(times[name] / times["plain"])
    return {name: statistics.median(found) for name, found in ratios.items()}


def peak(job: Callable[[], Any]) -> int:
    """The most bytes of tensors that a job has at one time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        job()
    held = most = 0
    for event in sorted(seen.profiler.kineto_results.events(), key=lambda e: e.start_ns()):  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most
