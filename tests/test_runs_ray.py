"""Runs on a real Ray of this machine: the same bytes as here, also after the death of an actor."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import whence
from tests.support.runs import MODEL, parts, rows, run_of, written

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    """A real Ray of this machine, with room for three actors."""
    ray = pytest.importorskip("ray")
    package = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": package, "OMP_NUM_THREADS": "1"}},
    )  # fmt: skip
    yield ray
    ray.shutdown()


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_actors_write_the_same_bytes(cluster: object, tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", 60)
    run_of(data, tmp_path / "here")
    run = run_of(data, tmp_path / "there", executor="ray", workers=2)
    assert run.complete
    assert parts(tmp_path / "here") == parts(tmp_path / "there")
    assert len(parts(tmp_path / "here")) == 8


@pytest.mark.filterwarnings("ignore")
def test_an_actor_that_is_killed_is_replaced(cluster: object, tmp_path: Path) -> None:
    data, draw = written(tmp_path / "rows.jsonl", 240), random.Random(3)
    run_of(data, tmp_path / "here", "tests.support.runs:slow")
    before = actors()
    stop = subprocess.Popen(
        [sys.executable, "-c", KILLER, str(tmp_path / "there" / "out"), str(draw.random()), *map(str, before)]
    )
    run = run_of(data, tmp_path / "there", "tests.support.runs:slow", executor="ray", workers=2)
    assert stop.wait() == 0, "no actor was killed"
    assert run.complete
    assert parts(tmp_path / "here") == parts(tmp_path / "there")


def actors() -> set[int]:
    found = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return {int(line.split()[0]) for line in found.splitlines() if "ray::Actor" in line}


KILLER = """
import os, signal, subprocess, sys, time
out, wait, before = sys.argv[1], float(sys.argv[2]), set(map(int, sys.argv[3:]))
while not (os.path.isdir(out) and os.listdir(out)):
    time.sleep(0.02)
time.sleep(wait / 2)
lines = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout.splitlines()
own = sorted({int(line.split()[0]) for line in lines if "ray::Actor" in line} - before)
os.kill(own[0], signal.SIGKILL)
"""


@pytest.mark.filterwarnings("ignore")
def test_workers_that_the_cluster_has_no_room_for_are_refused(cluster: object, tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", 60)
    with pytest.raises(whence.ParameterError, match="9 workers need 9 CPUs, but the Ray cluster has 3"):
        run_of(data, tmp_path / "run", executor="ray", workers=9)
    with pytest.raises(whence.ParameterError, match="2 workers need 2 GPUs, but the Ray cluster has 0"):
        run_of(data, tmp_path / "run", executor="ray", workers=2, gpus_per_worker=1)


@pytest.mark.filterwarnings("ignore")
def test_a_shard_that_kills_actors_is_set_aside(cluster: object, tmp_path: Path) -> None:
    lines = rows(24)
    lines[9]["inputs"] = [1e9] * 6
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in lines))
    with pytest.warns(whence.WhenceWarning, match="Shard 1 .* was set aside: it killed its worker 3 times"):
        run = run_of(tmp_path / "rows.jsonl", tmp_path / "run", "tests.support.runs:deadly", executor="ray", workers=2)
    assert [shard.shard for shard in run.missing] == [1]


@pytest.mark.filterwarnings("ignore")
def test_an_evaluation_by_actors(cluster: object) -> None:
    x = torch.tensor([row["inputs"] for row in rows(12)])
    found = [
        whence.evaluate(MODEL, x, methods=["gradient"], metrics=["comprehensiveness"], chunk=4, **how)
        for how in ({}, {"executor": "ray", "workers": 2})
    ]
    a, b = ({key: {n: r.value for n, r in sorted(own.items())} for key, own in f.results.items()} for f in found)
    assert a == b


DYING = """
import sys, threading, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
import whence

data, out = map(Path, sys.argv[1:])
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
machine = cluster.add_node(num_cpus=2)
ray.init(address=cluster.address, log_to_driver=False)

def end():
    while not list((out / "out").glob("part-*")):
        time.sleep(0.05)
    cluster.remove_node(machine, allow_graceful=False)

threading.Thread(target=end, daemon=True).start()
try:
    whence.run("tests.support.runs:slow", data, methods=["gradient"], out=out, shard_rows=4, executor="ray", workers=2)
except whence.WhenceError as error:
    print("said:", error)
"""


def test_a_cluster_whose_machines_are_gone_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    data = written(tmp_path / "rows.jsonl", 4000)
    package = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": package, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", DYING, str(data), str(tmp_path / "run")], env=environment, cwd=ROOT, text=True,
        capture_output=True, timeout=400,
    )  # fmt: skip
    assert "said: The Ray cluster has no machine left.\n  What was finished before is kept" in done.stdout, done.stderr
    assert not [path for path in (tmp_path / "run").rglob("*") if path.name.endswith(".tmp")]
