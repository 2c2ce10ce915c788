"""A page for each method, from its entry in the registry, what is known of it, and what was measured."""

from __future__ import annotations

from collections.abc import Iterator

import whence
from builder.api import toctree


def pages() -> Iterator[tuple[str, str]]:
    yield (
        "methods/index.md",
        "\n".join(["# Methods", "", *[f"- `{n}`" for n in whence.methods], "", *toctree(whence.methods)]),
    )
    for name, entry in whence.methods.items():
        yield f"methods/{name}.md", f"# {name}\n\n{entry.description}\n"
