"""The examples run as a user runs them: each prints its table and writes its picture, or says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NEEDS = {  # a script, the data set without which it stops
    "question_classification": "sentence_classification",
    "translation": "mt_toy_deen",
    "molecules": "molecules",
    "attention_erasure": "sentence_classification",
}
ALONE = ("gradient_problems", "object_recognition")  # these go on without any


def run(name: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("matplotlib")
    pytest.importorskip("transformers")
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")], cwd=folder, capture_output=True, text=True,
        timeout=1200, env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


def check(done: subprocess.CompletedProcess[str], picture: Path) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert "──" in done.stdout  # a table
    assert "nan" not in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.shared
@pytest.mark.parametrize("name", NEEDS)
def test_examples_on_the_real_data(name, data, tmp_path):
    data(NEEDS[name])
    check(run(name, tmp_path), tmp_path / f"{name}.png")


@pytest.mark.parametrize("name", ALONE)
def test_examples_that_need_no_data(name, tmp_path):
    check(run(name, tmp_path, WHENCE_DATA=str(tmp_path)), tmp_path / f"{name}.png")


@pytest.mark.parametrize("name", NEEDS)
def test_examples_say_what_is_missing(name, tmp_path):
    done = run(name, tmp_path, WHENCE_DATA=str(tmp_path))
    assert done.returncode == 2
    assert "WHENCE_DATA" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_example_is_in_the_table():
    told = (ROOT / "examples" / "README.md").read_text()
    for path in (ROOT / "examples").glob("*.py"):
        assert path.name == "pictures.py" or f"`{path.name}`" in told
