"""Runs that are killed, damaged, or started twice end as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

import whence
from tests.support.processes import full_disk
from tests.support.runs import METHODS, Small, parts, rows, run_of, written

ROOT = Path(__file__).resolve().parents[1]
SLOW = "tests.support.runs:slow"


def driver(data: Path, out: Path, executor: str = "process", shard_rows: int = 8) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.support.runs", SLOW, str(data), str(out), executor, str(shard_rows)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)


def children(pid: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def check_rows(out: Path, count: int) -> None:
    """No row lost or doubled, nothing unfinished left."""
    found = [
        n for p in sorted((out / "out").glob("*.parquet")) for n in pq.read_table(p, columns=["row"])[0].to_pylist()
    ]
    assert found == list(range(count))
    assert not [p for p in out.rglob("*") if p.name.endswith(".tmp")]


@pytest.mark.slow
def test_ten_kills_of_workers_and_drivers_at_random_moments(tmp_path: Path) -> None:
    data, draw, kills = written(tmp_path / "rows.jsonl", 480), random.Random(7), 0
    run_of(data, tmp_path / "whole", SLOW)
    out, process, before = tmp_path / "killed", None, 0
    while kills < 10:
        process = process or driver(data, out)
        while process.poll() is None and len(list((out / "out").glob("part-*"))) < before + 1:
            time.sleep(0.01)
        time.sleep(draw.random() * 0.3)
        if process.poll() is not None:  # it was quicker: from the beginning, so that ten kills hit something
            assert process.communicate() is not None
            assert process.returncode == 0
            assert parts(out) == parts(tmp_path / "whole")
            shutil.rmtree(out)
            process, before = None, 0
            continue
        victims = children(process.pid)
        if kills % 2 and victims:
            os.kill(draw.choice(victims), signal.SIGKILL)
        else:
            process.kill()
            process.communicate()
            process = None
        kills += 1
        before = len(list((out / "out").glob("part-*")))
    if process is not None:
        process.communicate()
    run = run_of(data, out, SLOW)
    assert run.complete
    assert parts(out) == parts(tmp_path / "whole")
    check_rows(out, 480)


@pytest.mark.slow
def test_a_shard_that_kills_its_worker_three_times_is_set_aside(tmp_path: Path) -> None:
    lines = rows(40)
    lines[21]["inputs"] = [1e9] * 6
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in lines))
    with pytest.warns(whence.WhenceWarning, match=r"Shard 2 \(rows 16 to 23\) was set aside: .* 3 times \(signal 9\)"):
        run = run_of(data, tmp_path / "run", "tests.support.runs:deadly", executor="process", workers=2)
    assert [shard.shard for shard in run.missing] == [2]
    assert len(run) == 32
    assert [(e["row"], e["last"]) for e in run.errors()] == [(16, 23)]


@pytest.mark.slow
def test_a_worker_that_cannot_load_the_model_says_so(tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl")
    with pytest.raises(whence.ModelError, match="only_here' raised OSError: the disk with the weights is not mounted"):
        run_of(data, tmp_path / "run", "tests.support.runs:only_here", executor="process")


def test_memory_that_runs_out_halves_the_batch(tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", 30)
    whole = run_of(data, tmp_path / "whole").to_arrow()
    halved = run_of(data, tmp_path / "halved", "tests.support.runs:large").to_arrow()
    for method in METHODS:
        a, b = (torch.tensor(table[f"values_{method}"].to_pylist()) for table in (whole, halved))
        assert torch.allclose(a, b, rtol=0, atol=1e-6 * float(a.abs().max()))
    assert halved["error"].null_count == 30


# ---- damage ----


def truncated(content: bytes) -> bytes:
    return content[: len(content) * 2 // 3]


def empty(content: bytes) -> bytes:
    return b""


def flipped(at: float) -> Callable[[bytes], bytes]:
    def flip(content: bytes) -> bytes:
        place = int(at * len(content))
        return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]

    return flip


@pytest.mark.parametrize("damage", [truncated, empty, *map(flipped, (0.03, 0.4, 0.97))])
def test_damaged_parts_are_done_again(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    data = written(tmp_path / "rows.jsonl", 24)
    run_of(data, tmp_path / "run")
    whole, part = parts(tmp_path / "run"), tmp_path / "run" / "out" / "part-00001.parquet"
    part.write_bytes(damage(part.read_bytes()))
    assert parts(tmp_path / "run") != whole
    run_of(data, tmp_path / "run")
    assert parts(tmp_path / "run") == whole


@pytest.mark.slow
def test_flipped_bits_anywhere_in_a_part_are_found(tmp_path: Path) -> None:
    """Every 17th byte of a part and all of its footer's end, one bit each."""
    from whence.runs import parts as files
    from whence.runs import plan
    from whence.runs.storage import storage_of

    run = run_of(written(tmp_path / "rows.jsonl", 8), tmp_path / "run")
    storage, fingerprint = storage_of(tmp_path / "run"), run.manifest["fingerprint"]
    (shard,) = plan.read(storage)
    path = tmp_path / "run" / shard.part
    content = path.read_bytes()
    assert files.about(storage, shard, fingerprint, run.schema) is not None
    for place in [*range(0, len(content) - 160, 17), *range(len(content) - 160, len(content))]:
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << place % 8)]) + content[place + 1 :])
        assert files.about(storage, shard, fingerprint, run.schema) is None, place


def test_foreign_parts_are_done_again(tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", 24)
    run_of(data, tmp_path / "run")
    run_of(data, tmp_path / "other", seed=1)
    whole = parts(tmp_path / "run")
    for name in ("part-00001.parquet", "part-00002.parquet"):
        shutil.copy(tmp_path / "other" / "out" / name, tmp_path / "run" / "out" / name)
    shutil.copy(tmp_path / "run" / "out" / "part-00000.parquet", tmp_path / "run" / "out" / "part-00001.parquet")
    with pytest.raises(whence.FileError, match="part-00002.parquet .* not of this run"):
        list(whence.open(tmp_path / "run").batches())
    run_of(data, tmp_path / "run")
    assert parts(tmp_path / "run") == whole


def test_another_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", 24)
    run_of(data, tmp_path / "run")
    whole = parts(tmp_path / "run")
    with pytest.raises(whence.FileError, match=r"options: seed was None, is 1"):
        run_of(data, tmp_path / "run", seed=1)
    with pytest.raises(
        whence.FileError, match=r"model: was 'contents .*', is 'contents .*' \(.* before, now .*deadly\)"
    ):
        run_of(data, tmp_path / "run", "tests.support.runs:deadly")
    with pytest.raises(whence.FileError, match="shard_rows: was 8, is 4"):
        run_of(data, tmp_path / "run", shard_rows=4)
    written(data, 23)
    with pytest.raises(whence.FileError, match=r"data: .*rows.jsonl has other contents \(24 rows in .*, now 23 in"):
        run_of(data, tmp_path / "run")
    assert parts(tmp_path / "run") == whole


def test_of_a_method_s_many_parameters_the_one_that_changed_is_told(tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", 8)
    model, out = Small().eval(), tmp_path / "run"
    whence.run(model, data, methods={"integrated_gradients": {"tolerance": 0.01}, "gradient": {}}, out=out)
    with pytest.raises(
        whence.FileError,
        match=r"methods: integrated_gradients.tolerance was 0.01, is 0.02; gradient was {.*}, is None\n",
    ):
        whence.run(model, data, methods={"integrated_gradients": {"tolerance": 0.02}}, out=out)


@pytest.mark.slow
def test_a_second_driver_is_refused(tmp_path: Path) -> None:
    data, out = written(tmp_path / "rows.jsonl", 480), tmp_path / "run"
    first = driver(data, out, "inline")
    while not list((out / "out").glob("part-*")):
        assert first.poll() is None
        time.sleep(0.05)
    with pytest.raises(whence.FileError, match=rf"Another run is writing .*run \(process {first.pid} on "):
        run_of(data, out, SLOW)
    first.communicate()
    assert first.returncode == 0
    check_rows(out, 480)


def test_a_full_disk_is_one_error_and_the_run_goes_on_later(tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", 24)
    run_of(data, tmp_path / "whole")
    with full_disk(9000), pytest.raises(whence.FileError, match="cannot write .*part-00000.parquet: File too large"):
        run_of(data, tmp_path / "run")
    assert not [p for p in (tmp_path / "run").rglob("*") if p.name.endswith(".tmp")]
    run_of(data, tmp_path / "run")
    assert parts(tmp_path / "run") == parts(tmp_path / "whole")
