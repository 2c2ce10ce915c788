from __future__ import annotations

from builder.api import toctree
from whence.evaluation.axioms import properties


def pages():
    yield "axioms/index.md", "\n".join(["# Axioms", "", *toctree(properties)])
    for name, entry in properties.items():
        yield f"axioms/{name}.md", f"# {name}\n\n{entry.description}\n"
