"""The documents: their code runs, their tables are those of the registries, their links lead somewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import whence

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *("README.md", "CONTRIBUTING.md"),
    *sorted(page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")),
]
WITH_CODE = [page for page in PAGES if "```python\n" in (ROOT / page).read_text()]


@pytest.mark.parametrize("page", WITH_CODE)
def test_the_code_on_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    before, measured = set(whence.methods), set(whence.metrics)
    try:
        for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S):
            exec(compile(block, page, "exec"), space)
        for picture in re.findall(r"\]\(\S*pictures/(\S+?)\.png\)", (ROOT / page).read_text()):  # docs/pictures.py
            assert any((tmp_path / f"{picture}{end}").exists() for end in (".png", ".html")), picture
    finally:
        for added in set(whence.methods) - before:
            whence.methods._entries.pop(added)
        for added in set(whence.metrics) - measured:
            whence.metrics._entries.pop(added)


def test_most_pages_have_code() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/methods.md", "docs/explain.md", "docs/evaluation.md"} <= set(
        WITH_CODE
    )


@pytest.mark.parametrize("page", ["methods.md", "evaluation.md", "architecture.md", "which_method.md", "measured.md"])
def test_the_tables_are_those_of_the_registries(page: str) -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert (ROOT / "docs" / page).read_text() == generate.page(page), "run `make table`"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    prose = re.sub(r"^```.*?^```|`[^`\n]+`", "", (ROOT / page).read_text(), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" not in link:
            file, _, anchor = link.partition("#")
            target = (ROOT / page).parent / file if file else ROOT / page
            assert target.exists(), link
            heads = re.findall(r"^#+ (.*)$", target.read_text(), re.M) if anchor else []
            assert not anchor or anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_the_readme_counts_what_there_is() -> None:
    text = (ROOT / "README.md").read_text()
    assert f"**{len(whence.methods) - 1} methods on one engine**" in text  # `random` is a control
    assert f"{len(whence.metrics)} metrics" in text


def test_the_readme_is_one_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("name", ["shap", "quantus", "inseq", "lxt", "zennit"])
def test_pages_about_other_libraries_have_what_both_gave(name: str) -> None:
    """Between the marks that `python -m benchmarks.peers --docs` writes to."""
    text = (ROOT / "docs" / "from" / f"{name}.md").read_text()
    (told,) = re.findall(r"<!-- peers: begin -->\n```text\n(.*?)```\n<!-- peers: end -->", text, re.S)
    assert re.match(rf"{name} \d+\.\d+\S* ?(cannot be imported beside|largest difference)", told.replace(":", "", 1))
    assert f"python -m benchmarks.peers {name}" in text


def test_the_peer_that_is_installed_agrees() -> None:
    from benchmarks import peers

    if importlib.util.find_spec("zennit") is None:
        pytest.skip("zennit is not installed (pip install --no-deps zennit)")
    differences = dict(peers.zennit())
    assert len(differences) == 4
    assert max(differences.values()) < 1e-6
    assert peers.written("a\n<!-- peers: begin -->\nold\n<!-- peers: end -->\nb", "new").count("new") == 1


@pytest.mark.slow
def test_the_worked_example_of_a_new_method_works(tmp_path: Path) -> None:
    """The diff in docs/architecture.md, applied to a copy: one source file and its oracle are all there is to write."""
    (diff,) = re.findall(r"```diff\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text(), re.S)
    skipped = shutil.ignore_patterns("__pycache__", "weights", "*.egg-info")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=skipped)
    for folder in ("tests/oracles", "tests/support"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=skipped)
    for file in ("tests/__init__.py", "tests/conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path / file)
    subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=tmp_path, check=True)
    (written,) = re.findall(r"^\+\+\+ b/(src/\S+)$", diff, re.M)
    (oracle,) = re.findall(r"^\+\+\+ b/(tests/\S+)$", diff, re.M)
    assert (tmp_path / written).exists()
    places = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "src"), str(tmp_path)])}
    check = "import whence; assert 'clipped_gradient' in whence.methods; print(whence.__file__)"
    for command in (["-c", check], ["-m", "pytest", "-n", "0", "-p", "no:cacheprovider", oracle]):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=places, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
