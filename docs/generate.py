"""Writes the tables of the docs from the registries and from the files' own docstrings: `make table`."""

from __future__ import annotations

import ast
import csv
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


LEAGUE = DOCS.parent / "reproductions" / "league_table"
MODELS = ("toxic_posts", "reviews", "mosaics", "horses")


def ranks() -> str:
    """The league table in short: each method's ranks by faithfulness on four models, and what it cost there."""
    cost = {model: {line["method"]: line["× fb"] for line in _read(LEAGUE / f"{model}.csv")} for model in MODELS}
    lines = [_row("method", *[f"{name.replace('_', ' ')}: rank, × fb" for name in MODELS]), "|---|---|---|---|---|"]
    for line in _read(LEAGUE / "all_faithful.csv"):
        cells = [f"{line[m]}, {cost[m][line['method']]}" if line["method"] in cost[m] else "–" for m in MODELS]
        lines.append(_row(_setting(line["method"]), *cells))
    return "\n".join(lines)


def family() -> str:
    """The ranks of the LRP family by faithfulness, among all methods of each model."""
    heads = [f"{name.replace('_', ' ')} ({len(_read(LEAGUE / f'{name}.csv'))})" for name in MODELS]
    lines = [_row("method", *heads), "|---|---|---|---|---|"]
    for line in _read(LEAGUE / "lrp_family.csv"):
        lines.append(_row(_setting(line["method"]), *[line[name] for name in MODELS]))
    return "\n".join(lines)


def _setting(line: str) -> str:
    """A line's method as code, and how it was set."""
    method, _, setting = line.partition(", ")
    return f"`{method}`" + (f", {setting}" if setting else "")


def files() -> str:
    """Every file of the package with the first sentence of its docstring, room by room."""
    package = DOCS.parent / "src" / "whence"
    lines = []
    for file in sorted(package.rglob("*.py"), key=lambda file: (len(file.parts) > len(package.parts) + 1, file)):
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        name = file.relative_to(package)
        title = f"`{name.parent}/`" if name.name == "__init__.py" and name.parent.name else f"`{name}`"
        lines.append(_row(title, docstring.split("\n\n")[0].replace("\n", " ")))
    return "\n".join(["| file | what it is |", "|---|---|", *lines])


def _parameter(parameter: Any) -> str:
    others = [repr(choice) for choice in parameter.choices if choice != parameter.default]
    return f"`{parameter.name}={' | '.join([repr(parameter.default), *others])}`".replace("'", '"')


def _read(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


PAGES = {
    "methods.md": ("methods", methods),
    "evaluation.md": ("metrics", metrics),
    "architecture.md": ("files", files),
    "which_method.md": ("ranks", ranks),
    "measured.md": ("lrp family", family),
}


def page(name: str) -> str:
    """A page as it should be."""
    marker, table = PAGES[name]
    block = f"<!-- {marker}: begin -->\n{table()}\n<!-- {marker}: end -->"
    pattern = rf"<!-- {marker}: begin -->.*?<!-- {marker}: end -->"
    return re.sub(pattern, lambda _: block, (DOCS / name).read_text(encoding="utf-8"), flags=re.S)


if __name__ == "__main__":
    for name in PAGES:
        (DOCS / name).write_text(page(name), encoding="utf-8")
