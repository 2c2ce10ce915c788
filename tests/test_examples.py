"""The examples run as a user runs them: each prints its table and writes its picture, or says what is missing."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import whence.captum

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ("text", "image", "tabular", "compare_methods", "choose_a_method")
CAPTUM = ("image_classification", "question_answering", "visual_questions", "tabular_regression", "recommendation")


def run(name: str, folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("matplotlib")
    pytest.importorskip("transformers")
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *options], cwd=folder, capture_output=True, text=True,
        timeout=1200, env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


def check(done: subprocess.CompletedProcess[str], picture: Path) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert "──" in done.stdout  # a table
    assert "nan" not in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_examples_run(name, tmp_path):
    done = run(name, tmp_path, WHENCE_DATA=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    assert "nan" not in done.stdout
    assert "<html" in (tmp_path / f"{name}.html").read_text()


def test_examples_are_short():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(SCRIPTS)
    for name in SCRIPTS:
        assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) <= 40


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
        assert f"`{path.name}`" in told
        assert path.stem in made.split("EXAMPLES := ")[1].split("\n")[0].split()
    for path in (ROOT / "examples" / "captum").glob("*.py"):
        if path.name != "beside.py":
            assert f"`{path.name}`" in (path.parent / "README.md").read_text()
            assert path.stem in made.split("CAPTUM := ")[1].split("\n")[0].split()


# ---- with Captum's classes ----


def verdicts(text: str) -> set[tuple[str, str]]:
    """Of every line of a table: the attribution, and why it differs."""
    lines = [line for line in text.splitlines() if re.search(r"  \de[+-]\d\d\b", line)]
    reasons = ("on purpose, see below", "random draws")
    return {(line.split("  ")[0], next((why for why in reasons if line.endswith(why)), "")) for line in lines}


@pytest.mark.slow
@pytest.mark.parametrize("name", CAPTUM)
def test_scripts_beside_captum(name, tmp_path):
    """They end with an error where the two packages differ for no listed reason."""
    pytest.importorskip("captum")
    done = run(f"captum/{name}", tmp_path)
    check(done, tmp_path / f"{name}.png")
    told = (ROOT / "examples" / "captum" / "README.md").read_text()
    assert len(verdicts(done.stdout)) > 5
    assert verdicts(done.stdout) <= verdicts(told)  # the README's tables are what they print


@pytest.mark.slow
@pytest.mark.parametrize("package", ["captum", "whence"])
def test_scripts_with_one_package(package, tmp_path):
    pytest.importorskip("captum")
    done = run("captum/recommendation", tmp_path, "--with", package, "--out", "here.png")
    check(done, tmp_path / "here.png")
    assert "largest magnitude" in done.stdout


@pytest.mark.parametrize("name", CAPTUM)
def test_only_the_import_differs(name, monkeypatch):
    """`attribute` reads the package's name once, to choose between two imports of the same names."""
    for needed in ("matplotlib", "transformers", "sklearn", "PIL"):
        pytest.importorskip(needed)
    path = ROOT / "examples" / "captum" / f"{name}.py"
    monkeypatch.syspath_prepend(str(path.parent))
    assert runpy.run_path(str(path), run_name="example")["__doc__"]
    tree = ast.parse(path.read_text())
    attribute = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "attribute")
    assert sum(isinstance(node, ast.Name) and node.id == "package" for node in ast.walk(attribute)) == 1
    choice = attribute.body[0]
    assert isinstance(choice, ast.If)
    theirs, ours = choice.body[0], choice.orelse[0]
    assert isinstance(theirs, ast.ImportFrom)
    assert isinstance(ours, ast.ImportFrom)
    assert (theirs.module, ours.module) == ("captum.attr", "whence.captum")
    assert [a.name for a in theirs.names] == [a.name for a in ours.names]
    assert len(choice.body) == len(choice.orelse) == 1
    assert {a.name for a in ours.names} <= set(whence.captum.__all__)


def test_a_difference_needs_a_reason(monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "captum"))
    compare = runpy.run_path(str(ROOT / "examples" / "captum" / "beside.py"))["compare"]
    one, other, third = (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1]), torch.tensor([1.0, 1.9]))
    titles = ("IntegratedGradients", "LayerDeepLift, conv", "GradientShap", "Saliency")
    ours = dict.fromkeys(titles, (one,))
    theirs = {title: (one if title == "Saliency" else other,) for title in titles}
    again = {title: (third if title == "GradientShap" else theirs[title][0],) for title in titles}
    assert compare(ours, theirs, again) == ["IntegratedGradients"]
    out = capsys.readouterr().out
    assert verdicts(out) == {
        ("IntegratedGradients", ""), ("LayerDeepLift, conv", "on purpose, see below"),
        ("GradientShap", "random draws"), ("Saliency", ""),
    }  # fmt: skip
    assert "contributions sum to the score's difference" in out


def test_without_captum_a_script_runs_with_whence(monkeypatch, tmp_path, capsys):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    beside = runpy.run_path(str(ROOT / "examples" / "captum" / "beside.py"))
    asked = []

    def attribute(package, x):
        asked.append(package)
        yield "Saliency", x
        yield "picture", pyplot.figure()

    monkeypatch.setitem(sys.modules, "captum", None)
    for options, status in (([], 0), (["--with", "captum"], 2)):
        monkeypatch.setattr(sys, "argv", ["script.py", "--out", str(tmp_path / "a.png"), *options])
        with pytest.raises(SystemExit) if status else nullcontext():
            beside["main"]("script.py", "title", lambda: (torch.ones(2),), attribute)
    assert asked == ["whence"]
    assert "Captum is not installed" in capsys.readouterr().err
