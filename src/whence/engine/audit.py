"""The graph audit: which ops did a tensor pass through that the mode never saw?"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

# nodes which carry any stream unchanged: they appear without a call when views of one memory are written to
_PLUMBING = frozenset(
    """View Reshape UnsafeView AsStrided Alias Select Slice Index Expand Permute Transpose T Unsqueeze Squeeze Clone
    Copy CopySlices ToCopy Split Unbind Cat Stack Repeat Add Sub Neg Mean Sum AccumulateGrad Detach""".split()
)


def between(node: Any, known: Container[Any], dead: set[Any]) -> list[str] | None:
    """Names of the nodes between this one and the nodes that are known; None if it reaches none of them.

    `dead` remembers nodes that reach none, so that no graph is walked twice.
    """
    stack, visited, unknown, reached = [node], set(), [], False
    while stack:
        node = stack.pop()
        if node in visited or node in dead:
            continue
        visited.add(node)
        if node in known:
            reached = True
            continue
        unknown.append(node.name())
        stack.extend(following for following, _ in node.next_functions if following is not None)
    if not reached:
        dead |= visited
        return None
    return [name for name in unknown if not _is_plumbing(name)]


def _is_plumbing(name: str) -> bool:
    return name.split("::")[-1].split("Backward")[0] in _PLUMBING
