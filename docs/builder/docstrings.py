"""Docstrings are plain text with names in backticks: what reStructuredText would read into them is escaped."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

_SPECIAL = re.compile(r"(\\|@|\*|\||(?<=\w)_(?!\w))")


def escaped(line: str) -> str:
    """A line in which only backticks, lists and examples mean something."""
    if line.lstrip().startswith(">>>"):
        return line
    bullet = re.match(r"\s*[-*] ", line)
    head = bullet.group(0) if bullet else ""
    parts = re.split(r"(`+[^`]*`+)", line[len(head) :])
    return head + "".join(part if part.startswith("`") else _SPECIAL.sub(r"\\\1", part) for part in parts)


def process(app: Sphinx, what: str, name: str, given: Any, options: Any, lines: list[str]) -> None:
    lines[:] = map(escaped, lines)


def one_signature(app: Sphinx, env: Any, names: Any) -> None:
    """`explain` is shown with its arguments, and not with the overloads that a type checker reads."""
    analyzer = ModuleAnalyzer.for_module("whence.api")
    analyzer.analyze()
    analyzer.overloads.clear()


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    app.connect("env-before-read-docs", one_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
