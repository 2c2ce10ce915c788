"""The package as a whole: a light import, who may know whom, an oracle for each method, and that its documents run."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import whence
from benchmarks import walks
from whence.cli import main

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "whence"


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}; import sys; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def modules_after(statement: str) -> set[str]:
    return {name.partition(".")[0] for name in loaded_after(statement)}


def test_import_brings_torch_at_the_first_use_and_nothing_heavier() -> None:
    stdlib = set(sys.stdlib_module_names)
    assert modules_after("import whence; dir(whence); whence.__version__") - modules_after("pass") - stdlib == {
        "whence"
    }
    used = "; ".join(f"whence.{name}" for name in ("explain", "evaluate", "load", "methods", "axioms"))
    brought = modules_after(f"import whence; {used}") - modules_after("import torch, numpy")
    assert brought - stdlib == {"whence"}


def test_explain_brings_what_every_call_needs_and_no_method() -> None:
    own = {name for name in loaded_after("import whence; whence.explain") if name.partition(".")[0] == "whence"}
    assert len(own) <= 100  # a millisecond each
    for (
        part
    ) in "adapters.tasks adapters.tokens methods.attention. methods.integrated. rules.lrp evaluation views".split():
        assert not [name for name in own if name.startswith(f"whence.{part}")], part


def test_public_names_come_at_their_first_use() -> None:
    code = """if True:
        import whence, whence.api, whence.methods, whence.evaluation.metrics.curves
        assert {*whence.__all__, "__version__"} <= set(dir(whence))
        assert whence.methods["lrp"].name == "lrp" and whence.metrics["aopc"].name == "aopc"  # and not their folders
        assert whence.FileError is whence.errors.FileError and whence.explain is whence.api.explain
        from whence import *
        assert all(globals()[name] is getattr(whence, name) for name in whence.__all__)
        assert not hasattr(whence, "nothing") and not hasattr(whence, "_nothing")
        assert whence.zoo.ZOO
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    (typed,) = [node for node in tree.body if isinstance(node, ast.If)]
    named = {alias.name for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert named == set(whence.__all__)  # what a type checker sees


ORDER = """
    errors util registry engine rules subject methods results adapters api evaluation views runs captum zoo server
    cli demo
""".split()  # a package imports itself and what stands before it; whatever is imported later, inside functions, is lazy


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_packages_import_only_what_stands_before_them(file: Path) -> None:
    part = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    if part in ("__init__", "__main__"):
        return
    known = set()
    for node in ast.parse(file.read_text()).body:  # top level: what importing this file brings
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "whence":
            inner = (node.module or "").split(".")[1:2]
            known |= set(inner) if inner else {alias.name for alias in node.names}
    above = {name for name in known & set(ORDER) if ORDER.index(name) > ORDER.index(part)}
    assert not above, f"{part} imports {above}"


def test_the_door_has_few_rooms() -> None:
    entries = {p.name for p in SOURCE.iterdir()} - {"__init__.py", "py.typed", "__pycache__"}
    assert {name.removesuffix(".py") for name in entries} == {*ORDER, "__main__"}
    assert len(entries) <= 19


TREES = {file: ast.parse(file.read_text()) for file in sorted(SOURCE.rglob("*.py"))}


def test_files_and_functions_are_small() -> None:
    for file, tree in TREES.items():
        assert len(file.read_text().splitlines()) <= 400, file
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 60, f"{file}: {node.name}"
                if node.name == "__init__":
                    assert len(node.args.args) + len(node.args.kwonlyargs) - 1 <= 10, f"{file}:{node.lineno}"


def test_one_attribute_of_tensors_is_ours() -> None:
    """What a pass notes on tensors goes through the store of the trackers."""
    for file, tree in TREES.items():
        names = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        names |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        marks = {name for name in names if re.fullmatch(r"_whence\w*", name)}
        assert not marks or file == SOURCE / "engine" / "trackers" / "store.py", f"{file}: {marks}"


def test_every_method_has_an_oracle_and_a_description() -> None:
    oracles = set()
    for file in sorted((ROOT / "tests" / "oracles").glob("test_*.py")):
        oracles |= set(importlib.import_module(f"tests.oracles.{file.stem}").ORACLE_OF)
    assert set(whence.methods) <= oracles
    for name, entry in whence.methods.items():
        assert entry.description.endswith("."), name


def test_every_metric_has_a_direction_and_a_test() -> None:
    tests = "".join(
        (ROOT / "tests" / f"test_{name}.py").read_text() for name in ("evaluation", "scoreboard", "metrics_by_hand")
    )
    for name, entry in whence.metrics.items():
        assert entry.facts["better"] in ("higher", "lower", "nearer to 0"), name
        assert entry.description.endswith("."), name
        assert entry.paper, name
        assert f'"{name}"' in tests, name


def test_the_examples_in_docstrings_run() -> None:
    done = doctest.testmod(importlib.import_module("whence.api"))
    assert (done.attempted, done.failed) == (6, 0)


def test_the_command_line_lists_methods_and_reports_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    printed = capsys.readouterr().out
    assert "smoothgrad(of='gradient', of_params=None, samples=25, noise=0.15, relative=True, kind='mean')" in printed
    assert main(["demo", "--out", "no/such/folder/x.html"]) == 2
    assert "is not a file that can be written" in capsys.readouterr().err
    assert main(["explode"]) == 2
    told = capsys.readouterr().err
    assert "invalid choice: 'explode'" in told
    assert told.endswith("\n  See whence --help.\n")
    assert repr(whence.methods).splitlines()[0].startswith("gradient ")


def test_a_gradient_is_followed_through_few_files() -> None:
    """A reader of one explanation, function by function, changes file at most so often (benchmarks/walks.py)."""
    found = walks.walk(walks.gradient())
    assert found.changes <= 60, found.functions
    assert len(found.pairs) <= 3, found.pairs
