"""The examples run as a user runs them: each prints its table and writes its picture, or says what is missing."""

from __future__ import annotations

import os
import runpy
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
ALONE = ("object_recognition",)  # these go on without any


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


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("name", NEEDS)
def test_examples_on_the_real_data(name, data, tmp_path):
    data(NEEDS[name])
    check(run(name, tmp_path), tmp_path / f"{name}.png")


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_examples_that_need_no_data(name, tmp_path):
    check(run(name, tmp_path, WHENCE_DATA=str(tmp_path)), tmp_path / f"{name}.png")


@pytest.mark.parametrize("name", NEEDS)
def test_examples_say_what_is_missing(name, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    pytest.importorskip("transformers")
    script = ROOT / "examples" / f"{name}.py"
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(script), run_name="__main__")
    err = capsys.readouterr().err
    assert caught.value.code == 2
    assert "Traceback" not in err
    told = (ROOT / "examples" / "README.md").read_text()
    link = next(word.strip(",.") for word in err.split() if word.startswith("https://"))
    assert link in told  # where it comes from
    assert f"into a folder {NEEDS[name]}/" in err
    assert "set\n  WHENCE_DATA to the folder around it" in err
    assert f"`{NEEDS[name]}/" in told


@pytest.mark.parametrize("name", [*NEEDS, *ALONE])
def test_examples_find_what_they_import(name, monkeypatch):
    """Cheap beside running them; those that need data come this far, and to the data, below."""
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    assert runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="example")["__doc__"]


def test_a_data_set_without_one_of_its_files(tmp_path, monkeypatch):
    from whence import FileError
    from whence.zoo.training import data

    (tmp_path / "sentence_classification").mkdir()
    (tmp_path / "mt_toy_deen").mkdir()
    (tmp_path / "mt_toy_deen" / "train.de").write_text("ja\n")
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    for read, name in ((lambda: data.questions("test"), "TREC.test.all"), (data.pairs, "train.en")):
        with pytest.raises(FileError, match=f"there is no .*{name}.\n  Put .*{name}.* of https://github.com/"):
            read()


def test_every_example_is_in_the_table_and_made():
    told, made = (ROOT / "examples" / "README.md").read_text(), (ROOT / "Makefile").read_text()
    for path in (ROOT / "examples").glob("*.py"):
        if path.name != "pictures.py":
            assert f"`{path.name}`" in told
            assert path.stem in made.split("EXAMPLES := ")[1].split("\n")[0].split()
