"""Small runs: a model that workers can import, rows in files, and what makes two runs the same."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
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


def repeated(folder: Path, out: Path, times: int) -> Path:
    """A run whose shards are another's, so many times over, with rows numbered on."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    from whence.runs.plan import Shard

    (out / "out").mkdir(parents=True)
    manifest = json.loads((folder / "manifest.json").read_text())
    shards = [Shard(**json.loads(line)) for line in (folder / "plan.jsonl").read_text().splitlines()]
    tables = [parquet.read_table(folder / shard.part) for shard in shards]
    plan, row = [], 0
    for number in range(times * len(shards)):
        old, table = shards[number % len(shards)], tables[number % len(shards)]
        new = replace(old, shard=number, row=row)
        about = json.loads(table.schema.metadata[b"whence.shard"]) | {"shard": number, "row": row}
        metadata = {**table.schema.metadata, b"whence.shard": json.dumps(about, sort_keys=True).encode()}
        rows = pa.array(range(row, row + old.rows), pa.int64())
        parquet.write_table(
            table.set_column(0, "row", rows).replace_schema_metadata(metadata), out / new.part, compression="zstd",
            write_page_checksum=True,
        )  # fmt: skip
        plan.append(new)
        row += old.rows
    (out / "plan.jsonl").write_text("".join(f"{json.dumps(shard.plain())}\n" for shard in plan))
    (out / "manifest.json").write_text(json.dumps({**manifest, "rows": row, "shards": len(plan)}))
    return out


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
