"""What is live: marks on tensors, and the graph audit, which finds the ops that the mode never saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from whence.engine.trackers import store
from whence.errors import ModelError

_MARK = "live"  # on tensors that were born in a pass

# nodes which carry any signal unchanged: they appear without a call when views of one memory are written to
_PLUMBING = frozenset(
    """View Reshape UnsafeView AsStrided Alias Select Slice Index Expand Permute Transpose T Unsqueeze Squeeze Clone
    Copy CopySlices ToCopy Split Unbind Cat Stack Repeat Add Sub Neg Mean Sum AccumulateGrad Detach""".split()
)


def born_in_a_pass(tensor: Tensor) -> bool:
    """Whether a hook on this tensor goes when the pass does; a parameter, or what else is the model's, keeps it."""
    return tensor.requires_grad and store.get(tensor, _MARK) is not None


class Stray(ModelError):
    """A layer that runs by itself takes a live value that is not among its arguments."""

    def __init__(self, layer: str, shape: Any) -> None:
        super().__init__(
            f"The pass takes more than memory= allows, and cannot go layer by layer: {layer!r} takes a value of the "
            f"shape {tuple(shape)} that depends on the inputs and is not among its arguments.\n"
            "  Leave memory= out, give a larger one, or explain a shorter text."
        )


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
    _outside: set[Any] | None = None  # those of before, while a layer runs by itself
    _layer: str = ""
    leaves: set[int] = field(default_factory=set)  # with which the graphs of layers begin, by identity
    _dead: set[Any] = field(default_factory=set)  # graph nodes that depend on nothing live

    def put(self, tensor: Tensor) -> None:
        if tensor.requires_grad or (self.tracks and (tensor.is_floating_point() or tensor.is_complex())):
            store.put(tensor, _MARK, self._token)
            self._nodes.add(tensor.grad_fn)

    def begin(self, layer: str) -> tuple[Any, Any]:
        """A layer runs by itself, whose graph is not to be kept by its marks; gives what `go_on` takes."""
        before = self._nodes, self._outside
        self._outside, self._nodes, self._layer = self._nodes, set(), layer
        return before

    def _strays(self, node: Any) -> bool:
        """Whether this comes from outside of the layer that runs, or from inside of another one."""
        if between(node, self._outside or (), set()) is not None:
            return True
        return any(id(getattr(one, "variable", None)) in self.leaves for one in reached(node))

    def go_on(self, before: tuple[Any, Any]) -> None:
        """The layer has run."""
        self._nodes, self._outside = before

    def is_live(self, tensor: Tensor) -> bool:
        """Whether a tensor is marked (and was not written to since), or its graph reaches a node that is known."""
        if not tensor.requires_grad:
            return self.tracks and store.get(tensor, _MARK) is self._token
        node = tensor.grad_fn
        if node is None or node in self._nodes:
            return node is not None
        unseen = between(node, self._nodes, self._dead)
        if unseen is None:
            if self._outside is not None and self._strays(node):
                raise Stray(self._layer, tensor.shape)
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


def reached(node: Any) -> set[Any]:
    """All nodes of the graph that ends here."""
    stack, visited = [node], set()
    while stack:
        node = stack.pop()
        if node not in visited:
            visited.add(node)
            stack.extend(following for following, _ in node.next_functions if following is not None)
    return visited


def _is_plumbing(name: str) -> bool:
    return name.split("::")[-1].split("Backward")[0] in _PLUMBING
