"""Names in backticks lead to their pages: methods, metrics, axioms, and whatever the API reference describes."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

FOLDERS = ("methods", "metrics", "axioms")
VARIABLES = {"a": "Attribution", "board": "Scoreboard", "c": "Comparison"}  # as examples call their results


def targets(env: BuildEnvironment) -> dict[str, tuple[str, str]]:
    """Short name → page and anchor."""
    found: dict[str, tuple[str, str]] = {}
    for name, entry in env.domains["py"].data["objects"].items():  # whence.Attribution.gap
        parts = name.split(".")
        if parts[0] != "whence":
            continue
        place = (entry.docname, entry.node_id)
        found[name] = place
        found.setdefault(name.removeprefix("whence."), place)
        for variable, owner in VARIABLES.items():
            if parts[-2] == owner:
                found.setdefault(f"{variable}.{parts[-1]}", place)
    for folder in reversed(FOLDERS):
        for page in env.found_docs:
            if page.startswith(f"{folder}/") and page != f"{folder}/index":
                found[page.partition("/")[2]] = (page, "")
    return found


def bare(text: str) -> str:
    """What a literal names: `explain(…)` is explain, `"lrp"` and `method="lrp"` are lrp."""
    text = re.sub(r"\(.*\)$", "", text, flags=re.S)
    return re.sub(r'^(?:method=)?"([\w.]+)"$', r"\1", text)


def link(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    known = app.env.temp_data.get("short_names") or targets(app.env)
    for literal in list(doctree.findall(nodes.literal)):
        above = literal.parent
        while above is not None and not isinstance(above, nodes.reference | nodes.title):
            above = above.parent
        place = known.get(bare(literal.astext()))
        if above is not None or place is None or (place[0] == docname and not place[1]):
            continue
        address = app.builder.get_relative_uri(docname, place[0]) + (f"#{place[1]}" if place[1] else "")
        reference = nodes.reference("", "", internal=True, refuri=address)
        literal.replace_self(reference)
        reference += literal


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-resolved", link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
