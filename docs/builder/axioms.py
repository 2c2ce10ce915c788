"""A page for each axiom: what it says, who states what, and what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import whence
from builder.api import toctree
from builder.known import PROBED, body_of, bullets, formula, grid, ideas, measured, paper, sections, table_of
from whence.evaluation.axioms import properties
from whence.evaluation.axioms.toys import _LINES, SOURCES, STATED, USUAL
from whence.registry import Entry


def pages() -> Iterator[tuple[str, str]]:
    """The list of all axioms, and a page for each."""
    rows = [
        [f"`{name}`", ideas("axioms").get(name, {}).get("idea", entry.description)]
        for name, entry in properties.items()
    ]
    lead = "Properties that papers ask of methods. [How they are measured, and on your own model](../axioms.md)."
    yield (
        "axioms/index.md",
        "\n\n".join(["# All axioms", lead, grid(["axiom", "the idea"], rows)])
        + "\n\n"
        + "\n".join(toctree(properties)),
    )
    for name, entry in properties.items():
        yield f"axioms/{name}.md", page(entry)


def page(entry: Entry[Any]) -> str:
    """One axiom."""
    name, own = entry.name, ideas("axioms").get(entry.name, {})
    call = f'```py\ntable = whence.axioms(model, inputs, methods=["gradient", "deeplift"], only=["{name}"])\n```'
    source = f"**Paper:** {paper(entry.paper)}" if entry.paper else ""
    return sections(
        name,
        {
            "": "\n\n".join(filter(None, [own.get("idea", entry.description), source])),
            "Definition": formula(own["formula"]) if own else "",
            "Why it matters": own.get("why", ""),
            "How it is measured": "\n\n".join(filter(None, [entry.description, body_of(entry), call])),
            "Which methods have it": _table(name),
            "Counter-examples": bullets(_against(name)),
        },
    )  # fmt: skip


def stated(method: str, prop: str) -> tuple[str, str]:
    """What is stated of a method, and by whom; two empty strings where it is left open."""
    said = dict(zip(_LINES, STATED[prop], strict=True)).get(method, "") if prop in STATED else ""
    return said, SOURCES.get(method, {}).get(prop, USUAL) if said else ""


def verdict(found: dict[str, Any] | None) -> str:
    """A verdict with its number."""
    if found is None or found["verdict"] == "–":
        return "–"
    return str(found["verdict"]) + ("" if found["number"] is None else f" {found['number']:.2g}")


def found_on_toys(method: str, prop: str) -> dict[str, Any] | None:
    """What was measured on the toy functions."""
    return measured()["methods"].get(method, {}).get("properties", {}).get(prop)


def found_on_models(method: str) -> dict[str, dict[str, str]]:
    """Model → property → what was measured there."""
    own = {title: table_of("property_table", file).get(method) for file, title in PROBED.items()}
    here = measured()["methods"].get(method, {}).get("models", {})
    return {title: line for title, line in own.items() if line} | {
        model: {prop: verdict(one) for prop, one in line.items()} for model, line in here.items()
    }


def _table(prop: str) -> str:
    rows = []
    for method in whence.methods:
        said, source = stated(method, prop)
        toys = verdict(found_on_toys(method, prop))
        on_models = [line.get(prop, "–") for line in found_on_models(method).values()]
        counts = {word: sum(cell.split(" ")[0] == word for cell in on_models) for word in ("yes", "no")}
        counts["not refuted"] = sum(cell.startswith("not refuted") for cell in on_models)
        models = ", ".join(f"{word} on {count}" for word, count in counts.items() if count)
        if said or toys != "–" or models:
            rows.append([f"`{method}`", f"{said} ({source})" if said else "–", toys, models or "–"])
    note = (
        "Stated by papers, or by summaries where the brackets say so; measured on the functions by which the "
        "properties are taught, with default parameters; and on how many of the models on which the method was "
        "measured ([property table](../papers/property_table.md), and each method's own page). [What the verdicts "
        "mean](../axioms.md)."
    )
    return grid(["method", "stated", "toy functions", "models"], rows) + f"\n\n{note}"


def _against(prop: str) -> list[str]:
    found = []
    for method in whence.methods:
        toys = found_on_toys(method, prop)
        if toys:
            found += [f"`{method}`: {text}" for text in ([toys["where"]] if toys["where"] else []) + toys["against"]]
    return found
