"""The tests themselves: what several files need is in tests/support, and no test stands on another."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "tests").rglob("*.py"))


def imported(tree: ast.AST) -> set[str]:
    """Full names of the modules of this folder that a file imports, at its top or later."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
            assert not node.level, "relative imports: write tests.support instead"
    return {name for name in names if name.startswith("tests.")}


@pytest.mark.parametrize("file", FILES, ids=lambda p: str(p.relative_to(ROOT / "tests")))
def test_tests_import_from_support_only(file: Path) -> None:
    others = {name for name in imported(ast.parse(file.read_text())) if not name.startswith("tests.support")}
    assert not others, f"{file.name} imports {others}; what tests share belongs in tests/support"
