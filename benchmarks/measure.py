"""What jobs cost in CPU time, in turns, and a line of the table of speeds."""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

ROUNDS = 7
_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
Job = Callable[[], Any]


class Line(NamedTuple):
    """What some work costs, in the unit that its name ends with, beside a peer and the most that it should be."""

    name: str
    measured: float
    peer: float | None
    aim: float | None
    extra: str = ""


def plain(model: Callable[[Tensor], Tensor], x: Tensor) -> None:
    leaf = x.detach().clone().requires_grad_()
    torch.autograd.grad(model(leaf)[:, 0].sum(), leaf)


def times(jobs: Mapping[str, Job], rounds: int = ROUNDS, least: float = 0.0) -> dict[str, list[float]]:
    """CPU seconds of one call of each job, by round; a turn repeats its job until it has taken `least` seconds."""
    repeats = {}
    for name, job in jobs.items():
        job()  # warm up
        repeats[name] = max(1, round(least / max(_seconds(job, 1), 1e-6)))
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            taken[name].append(_seconds(job, repeats[name]) / repeats[name])
    return taken


def ratios(taken: Mapping[str, list[float]], to: str = "plain") -> dict[str, float]:
    """The median over rounds of each job's time relative to one job's in the same round."""
    floor = taken[to]
    return {name: statistics.median(a / b for a, b in zip(own, floor, strict=True)) for name, own in taken.items()}


def milliseconds(taken: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: 1e3 * statistics.median(own) for name, own in taken.items()}


def measure(jobs: Mapping[str, Job], rounds: int = ROUNDS) -> dict[str, float]:
    """Median ratio of each job's time to the job "plain" of the same round."""
    return ratios(times(jobs, rounds))


def _seconds(job: Job, repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        job()
    return time.process_time() - start


def peak(job: Job) -> int:
    """The most bytes of tensors that a job has at one time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        job()
    held = most = 0
    for event in sorted(seen.profiler.kineto_results.events(), key=lambda e: e.start_ns()):  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def in_a_child(job: Callable[[], Tensor]) -> tuple[Tensor, int, float]:
    """What a long job gives, by how many bytes it grows the process, and its CPU seconds: `peak` would keep a trace.

    The job runs in a fork, whose most resident memory begins at what it had then, and which gives back to the system
    what it frees.
    """
    with tempfile.NamedTemporaryFile() as file:
        child = os.fork()
        if child == 0:
            try:
                ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 18)
                before, start = _resident("VmRSS"), time.process_time()
                found = job()
                torch.save((found, _resident("VmHWM") - before, time.process_time() - start), file.name)
            finally:
                os._exit(0)  # nothing of the parent's is closed twice
        os.waitpid(child, 0)
        found, grown, seconds = torch.load(file.name, weights_only=True)
    return found, grown, seconds


def _resident(field: str) -> int:
    """Bytes of this process, as Linux counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


class _Ops(TorchDispatchMode):
    """Counts what torch runs, on the way forward and back."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def counted(job: Job) -> tuple[int, int]:
    """Calls of Python functions, torch's own among them, and tensor ops that reach a kernel, in one call of a job."""
    job()
    calls = 0

    def on(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(on)
    try:
        job()
    finally:
        sys.setprofile(None)
    with _Ops() as ops:
        job()
    return calls, ops.count


def made_of(job: Job, floor: Job) -> str:
    """What a job is made of, and the plain work beside it, counted."""
    (calls, ops), (least, plainly) = counted(job), counted(floor)
    return f"{calls:,} Python calls and {ops:,} tensor ops (floor: {least:,} and {plainly:,})"
