"""Runs on a terminal: progress that can be seen, and what is said where one is interrupted or terminated."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.support.runs import written
from whence.util.progress import bar

ROOT = Path(__file__).resolve().parents[1]
SLOW = "tests.support.runs:slow"


def read(terminal: int) -> bytes:
    """What was printed on a terminal whose other end is closed."""
    found = b""
    try:
        while content := os.read(terminal, 4096):
            found += content
    except OSError:  # how Linux says that the other end is closed
        pass
    finally:
        os.close(terminal)
    return found


@pytest.mark.parametrize("columns", [0, 60])
def test_progress_is_seen_on_a_terminal_of_any_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal without a width is what `docker exec -t` and many batch systems give."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(there, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with bar(100, None, "run", at_once=True, unit=" rows") as count:
            time.sleep(0.2)
            count(40)
    found = read(here).decode()
    assert "run:   0%" in found  # before the first shard is done
    assert "40/100" in found


def driver(data: Path, out: Path, executor: str) -> subprocess.Popen[str]:
    """`whence run` as the leader of a process group, as a shell starts it."""
    command = [sys.executable, "-m", "whence", "run", "--model", SLOW, "--data", str(data), "--out", str(out)]
    command += ["--methods", "integrated_gradients,gradient", "--shard-rows", "8", "--executor", executor]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "process"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_in_one_line_how_to_go_on(
    tmp_path: Path, executor: str, number: signal.Signals
) -> None:
    data, out = written(tmp_path / "rows.jsonl", 160), tmp_path / "run"
    process = driver(data, out, executor)
    while not list((out / "out").glob("part-*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, number)  # Ctrl-C is for all processes of a terminal's group
    told, said = process.communicate(timeout=60)
    word = "interrupted" if number == signal.SIGINT else "terminated"
    line = f"whence: {word}; what is done is in {out}, and the same command goes on from there\n"
    assert (process.returncode, told, said) == (128 + number, "", line)
    assert not [path for path in out.rglob("*") if path.name.endswith(".tmp")]
    done = len(list((out / "out").glob("part-*")))
    assert 0 < done < 20
