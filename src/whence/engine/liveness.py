"""What is live: marks on tensors, and the graph audit, which finds the ops that the mode never saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from whence.engine.trackers import store

_MARK = "live"  # on tensors that were born in a pass

# nodes which carry any signal unchanged: they appear without a call when views of one memory are written to
_PLUMBING = frozenset(
    """View Reshape UnsafeView AsStrided Alias Select Slice Index Expand Permute Transpose T Unsqueeze Squeeze Clone
    Copy CopySlices ToCopy Split Unbind Cat Stack Repeat Add Sub Neg Mean Sum AccumulateGrad Detach""".split()
)


def born_in_a_pass(tensor: Tensor) -> bool:
    """Whether a hook on this tensor goes when the pass does; a parameter, or what else is the model's, keeps it."""
    return tensor.requires_grad and store.get(tensor, _MARK) is not None


@dataclass(eq=False)
class Marks:
    """The tensors of one pass that depend on explained values. Without gradients (`tracks`) marks alone say so.

    What ran where the mode could not see is counted in `unseen`, with the module in which it came back.
    """

    tracks: bool
    unseen: Counter[tuple[str, str]]
    here: Callable[[], str]  # the path of the module that runs
    _token: object = field(default_factory=object)  # not the pass: a tensor must not keep it alive
    _nodes: set[Any] = field(default_factory=set)  # graph nodes whose op was seen
    _dead: set[Any] = field(default_factory=set)  # graph nodes that depend on nothing live

    def put(self, tensor: Tensor) -> None:
        if tensor.requires_grad or (self.tracks and (tensor.is_floating_point() or tensor.is_complex())):
            store.put(tensor, _MARK, self._token)
            self._nodes.add(tensor.grad_fn)

    def is_live(self, tensor: Tensor) -> bool:
        """Whether a tensor is marked (and was not written to since), or its graph reaches a node that is known."""
        if not tensor.requires_grad:
            return self.tracks and store.get(tensor, _MARK) is self._token
        node = tensor.grad_fn
        if node is None or node in self._nodes:
            return node is not None
        unseen = between(node, self._nodes, self._dead)
        if unseen is None:
            return False
        self.unseen.update((name, self.here()) for name in unseen)
        self.put(tensor)
        return True


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
