from __future__ import annotations

import whence
from builder.api import toctree


def pages():
    yield "metrics/index.md", "\n".join(["# Metrics", "", *toctree(whence.metrics)])
    for name, entry in whence.metrics.items():
        yield f"metrics/{name}.md", f"# {name}\n\n{entry.description}\n"
