"""Writes the tables of docs/methods.md and docs/evaluation.md from the registries: `make table`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import whence

DOCS = Path(__file__).parent


def methods() -> str:
    """Name, description, parameters and paper of each method."""
    lines = ["| name | what it is | parameters | paper |", "|---|---|---|---|"]
    for name, entry in whence.methods.items():
        parameters = ", ".join(map(_parameter, entry.parameters.values()))
        lines.append(_row(f"`{name}`", entry.description, parameters, entry.paper or "–"))
    return "\n".join(lines)


def metrics() -> str:
    """Name, description, direction, needs and paper of each metric."""
    lines = ["| metric | what it is | better | needs | paper |", "|---|---|---|---|---|"]
    for name, entry in whence.metrics.items():
        needs = ", ".join([*entry.facts.get("needs", ()), *filter(None, [entry.facts.get("of")])])
        lines.append(_row(f"`{name}`", entry.description, entry.facts["better"], needs, entry.paper))
    return "\n".join(lines)


def _parameter(parameter: Any) -> str:
    others = [repr(choice) for choice in parameter.choices if choice != parameter.default]
    return f"`{parameter.name}={' | '.join([repr(parameter.default), *others])}`".replace("'", '"')


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


PAGES = {"methods.md": ("methods", methods), "evaluation.md": ("metrics", metrics)}


def page(name: str) -> str:
    """A page as it should be."""
    marker, table = PAGES[name]
    block = f"<!-- {marker}: begin -->\n{table()}\n<!-- {marker}: end -->"
    pattern = rf"<!-- {marker}: begin -->.*?<!-- {marker}: end -->"
    return re.sub(pattern, lambda _: block, (DOCS / name).read_text(encoding="utf-8"), flags=re.S)


if __name__ == "__main__":
    for name in PAGES:
        (DOCS / name).write_text(page(name), encoding="utf-8")
