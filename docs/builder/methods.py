"""A page for each method: its entry in the registry, what is known of it, and what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import whence
from builder.api import toctree
from builder.axioms import found_on_models, found_on_toys, stated, verdict
from builder.known import (
    LEAGUE,
    body_of,
    bullets,
    formula,
    grid,
    ideas,
    measured,
    paper,
    parameters,
    sections,
    table_of,
    use,
)
from builder.pictures import picture
from whence.evaluation.axioms import properties
from whence.registry import Entry

NOTATION = (
    "φ is the attribution, f the explained score, x the input, x' the baseline, a an attention map of one layer, g its "
    "gradient, R its relevance, h a hidden state, ⊙ the elementwise product, ⁺ the positive part, r the read-out row."
)
FAMILIES = {  # by the place in the list
    "Gradients": 35, "Integrals": 45, "Differences and relevance": 75, "Attention": 115, "Removal": 150,
    "Control": 1000,
}  # fmt: skip


def pages() -> Iterator[tuple[str, str]]:
    """The list of all methods, and a page for each."""
    yield "methods/index.md", _index()
    for name, entry in whence.methods.items():
        yield f"methods/{name}.md", page(entry)


def page(entry: Entry[Any]) -> str:
    """One method."""
    name, own = entry.name, ideas("methods").get(entry.name, {})
    aliases = [f"`{alias}`" for alias, of in whence.methods.aliases.items() if of == name]
    facts = [
        f"**Paper:** {paper(entry.paper)}" if entry.paper else "",
        f"**Also called:** {', '.join(aliases)}" if aliases else "",
    ]
    call = f'```py\na = whence.explain(model, inputs, method="{name}")\n```'
    return sections(
        name,
        {
            "": "\n\n".join(filter(None, [own.get("idea", entry.description), *facts])),
            "Definition": "\n\n".join(filter(None, [
                formula(own["formula"]) if own else "", entry.description, body_of(entry), f"*{NOTATION}*"])),
            "A picture": picture(name),
            "When to use it": use(own),
            "Known failures": bullets(own.get("fails", ())),
            "Parameters": "\n\n".join([call, parameters(entry, "methods") or "It has none of its own.",
                                       "Those of every method are the arguments of `whence.explain`, "
                                       "[explained here](../explain.md)."]),
            "Properties, claimed and measured": axioms(name),
            "Cost, measured": cost(name),
            "Against the others": league(name),
        },
    )  # fmt: skip


def axioms(name: str) -> str:
    """What papers state of a method, what was found on their functions, and what on models."""
    models = found_on_models(name)
    rows, against = [], []
    for prop in properties:
        said, source = stated(name, prop)
        toys = found_on_toys(name, prop)
        cells = [line.get(prop, "–") for line in models.values()]
        if said or verdict(toys) != "–" or any(cell != "–" for cell in cells):
            rows.append([f"`{prop}`", f"{said} ({source})" if said else "–", verdict(toys), *cells])
        if toys:
            against += [f"`{prop}`: {text}" for text in ([toys["where"]] if toys["where"] else []) + toys["against"]]
    if not rows:
        return _NOT_MEASURED.format(name)
    found = f"Counter-examples that were found:\n\n{bullets(against)}" if against else ""
    return "\n\n".join(filter(None, [grid(["property", "stated", "toy functions", *models], rows), _MEASURED, found]))


_MEASURED = (
    "A verdict and the largest violation, with default parameters and a tolerance of 2 % "
    "([what they mean](../axioms.md)); models as in [the property table](../papers/property_table.md)."
)
_NOT_MEASURED = (
    "Nothing is stated of it, and it was not measured. "
    '`whence.axioms(model, inputs, methods=["{}"])` measures it on your model.'
)


def cost(name: str) -> str:
    """Passes on models of the zoo, and times in the league table."""
    found = measured()["methods"].get(name, {}).get("cost", {})
    rows = [[f"`zoo:{model}`", f"{forward:g}", f"{backward:g}", "–"] for model, (forward, backward) in found.items()]
    for model, title in LEAGUE.items():
        line = table_of("league_table", model).get(name)
        if line:
            rows.append([title, *(part.strip() for part in line["passes"].split("+")), line["× fb"]])
    return (
        f"{grid(['model', 'forward passes', 'backward passes', '× a plain pass'], rows)}\n\n{_COUNTED}" if rows else ""
    )


_COUNTED = (
    "Passes that a row took part in, copies of it together: counted on bundled models by `python -m benchmarks.pages`, "
    "and in [the league table](../papers/league_table.md), where time is in units of one plain forward and backward "
    "pass. That was a loaded machine: multiples tell, digits do not."
)


def league(name: str) -> str:
    """The ranks of a method and of its variants in the league table."""
    faithful, plausible = (table_of("league_table", f"all_{kind}") for kind in ("faithful", "plausible"))
    rows = []
    for line in faithful:
        if line == name or line.startswith(f"{name}, "):
            for kind, table in (("faithful", faithful), ("plausible", plausible)):
                rows.append([line, kind, *(table.get(line, {}).get(model, "–") for model in LEAGUE)])
    if not rows:
        return ""
    note = (
        "Ranks among all methods of each model, and in brackets the ranks that the rows allow with 95 % confidence: "
        "[the league table](../papers/league_table.md)."
    )
    return grid(["", "", *LEAGUE.values()], rows) + f"\n\n{note}"


def _index() -> str:
    """All methods by family, with their ideas."""
    order = whence.methods._order
    blocks, low = [], float("-inf")
    for family, high in FAMILIES.items():
        own = [name for name in whence.methods if low < order[name] <= high]
        rows = [
            [f"`{name}`", ideas("methods").get(name, {}).get("idea", whence.methods[name].description)] for name in own
        ]
        blocks += [f"## {family}", grid(["method", "the idea"], rows)]
        low = high
    rest = [name for name in whence.methods if order[name] > low]
    rows = [[f"`{name}`", whence.methods[name].description] for name in rest]
    blocks += ["## More", grid(["method", "the idea"], rows)] if rest else []
    lead = "One page each: the idea, the definition, a picture, when not to use it, and what was measured."
    return "\n\n".join(["# All methods", lead, *blocks]) + "\n\n" + "\n".join(toctree(whence.methods))
