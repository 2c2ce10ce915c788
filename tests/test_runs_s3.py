"""Runs on an object store: a real S3 server of this machine, and the same bytes there, also after kills."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import whence
from tests.support.runs import parts, run_of, written

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket of a real S3 server on the loopback, in a process of its own."""
    s3fs = pytest.importorskip("s3fs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Path(sys.executable).with_name("moto_server")
    log = (tmp_path_factory.mktemp("moto") / "log").open("wb")
    process = subprocess.Popen([server, "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log)
    own = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        s3fs.S3FileSystem(anon=False).mkdir("rows")
        yield "s3://rows"
    finally:
        process.terminate()
        process.wait()
        log.close()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def stored(address: str) -> dict[str, bytes]:
    import fsspec

    fs, path = fsspec.core.url_to_fs(address)
    fs.invalidate_cache()
    names = {name: name.removeprefix(f"{path}/") for name in fs.find(path)}
    return {own: fs.cat_file(name) for name, own in names.items() if own.startswith(("out/", "errors/"))}


@pytest.mark.filterwarnings("ignore")  # of the client's own
def test_a_run_on_s3_that_is_killed_in_the_middle_goes_on(bucket: str, tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", 160)
    run_of(data, tmp_path / "here", "tests.support.runs:slow")
    out = f"{bucket}/run"
    command = [sys.executable, "-m", "tests.support.runs", "tests.support.runs:slow", str(data), out, "process", "8"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    for wanted in (1, 8):
        process = subprocess.Popen(command, cwd=ROOT, env=environment)
        while process.poll() is None and len(stored(out)) < wanted:
            time.sleep(0.02)
        assert process.poll() is None, "it was done before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert 0 < len(stored(out)) < 20
    run = run_of(data, out, "tests.support.runs:slow", executor="process", workers=2)
    assert run.complete
    assert stored(out) == parts(tmp_path / "here")
    assert len(run) == 160
    assert [a.receipt["row"] for a in whence.open(out)[100:103]] == [100, 101, 102]


@pytest.mark.filterwarnings("ignore")
def test_data_may_be_on_s3_too(bucket: str, tmp_path: Path) -> None:
    import fsspec

    data = written(tmp_path / "rows.jsonl", 40)
    fs, path = fsspec.core.url_to_fs(f"{bucket}/data/rows.jsonl")
    fs.pipe_file(path, data.read_bytes())
    run_of(data, tmp_path / "here")
    for given in (f"{bucket}/data/rows.jsonl", f"{bucket}/data/*.jsonl", f"{bucket}/data"):
        out = tmp_path / str(abs(hash(given)))
        assert run_of(given, out).to_arrow().equals(run_of(data, tmp_path / "here").to_arrow())


@pytest.mark.filterwarnings("ignore")
def test_two_drivers_on_s3_end_with_the_same_bytes(bucket: str, tmp_path: Path) -> None:
    data, out = written(tmp_path / "rows.jsonl", 80), f"{bucket}/two"
    run_of(data, tmp_path / "here", "tests.support.runs:slow")
    command = [sys.executable, "-m", "tests.support.runs", "tests.support.runs:slow", str(data), out, "inline", "8"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    drivers = [subprocess.Popen(command, cwd=ROOT, env=environment) for _ in range(2)]
    assert [process.wait() for process in drivers] == [0, 0]
    assert stored(out) == parts(tmp_path / "here")
    with pytest.raises(whence.FileError, match="options: seed was None, is 4"):
        run_of(data, out, "tests.support.runs:slow", seed=4)
