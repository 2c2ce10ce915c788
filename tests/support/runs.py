"""Small runs: a model that workers can import, rows in files, and what makes two runs the same."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import whence

MODEL = "tests.support.runs:small"


class Small(nn.Module):
    """Two layers on six features."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def small() -> nn.Module:
    return Small()


class Slow(Small):
    """The same, and it takes its time."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.02)
        return super().forward(x)


def slow() -> nn.Module:
    return Slow()


class Deadly(Small):
    """The same, and some rows kill the process."""

    def forward(self, x: Tensor) -> Tensor:
        if bool((x > 1e6).any()):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


def deadly() -> nn.Module:
    return Deadly()


class Large(Small):
    """The same, and it wants more memory than there is for more than five rows."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 5:
            torch.empty(1 << 52, dtype=torch.uint8)
        return super().forward(x)


def large() -> nn.Module:
    return Large()


class Moody(Small):
    """The same, and it refuses some rows on bad days."""

    def forward(self, x: Tensor) -> Tensor:
        if os.environ.get("WHENCE_TEST_MOOD") != "good" and bool((x[:, 0] > 0.8).any()):
            raise ValueError("not today")
        return super().forward(x)


def moody() -> nn.Module:
    return Moody()


def failing() -> nn.Module:
    raise ZeroDivisionError("no model today")


def seven() -> int:
    return 7


def only_here() -> nn.Module:
    """A model that workers cannot load."""
    spec = sys.modules["__main__"].__spec__  # None where a test runner started this process
    if spec is not None and "whence.runs.worker" in spec.name:
        raise OSError("the disk with the weights is not mounted")
    return Small()


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    drawn = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed)).tolist()
    return [{"inputs": row, "label": number % 3, "id": f"r{number}"} for number, row in enumerate(drawn)]


def written(path: Path, count: int = 40) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows(count)))
    return path


def parts(folder: Path) -> dict[str, bytes]:
    """Every file of the answers, by its name."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob("[oe]*/*"))}


METHODS = ["integrated_gradients", "gradient"]


def run_of(data: object, out: object, model: str = MODEL, **how: object) -> whence.Run:
    """A run of the small model by its name, in shards of eight rows, on one thread as workers have it."""
    torch.set_num_threads(1)
    return whence.run(model, data, methods=METHODS, out=out, **{"shard_rows": 8, **how})


def drive(model: str, data: str, out: str, executor: str, shard_rows: str) -> None:
    """A run as its own process, which can be killed."""
    torch.set_num_threads(1)
    whence.run(model, data, methods=METHODS, out=out, executor=executor, workers=2, shard_rows=int(shard_rows))


if __name__ == "__main__":
    drive(*sys.argv[1:])
