"""Reading and replacing intermediate values by call: attention probabilities, the inputs and outputs of modules.

Attention is found by the computation, not by class names: a softmax whose result, copied, cast or dropped out perhaps,
multiplies something else that is live. Fused attention shows itself when it is expanded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from whence.engine.expand.attention import operands
from whence.engine.liveness import born_in_a_pass
from whence.engine.ops import GROUP
from whence.engine.trackers import Op, Tracker, modality, store
from whence.engine.trackers.token_numbers import numbers_of
from whence.engine.trackers.tokens import Tokens

_WEIGHTS = "weights"  # on a softmax's result and its copies
_PIECE = "piece"  # on a part of it that is still about queries and keys
_TOTAL = "total"  # on logsumexp(x), and on x − logsumexp(x)
_COPIES = frozenset({"dropout", "scale"})
_PROJECTED = "projected"  # on what was projected of a hidden state: that state


@dataclass(frozen=True)
class Site:
    """A place in one forward pass."""

    kind: Literal["attention", "input", "output"]  # attention probabilities; what enters or leaves a module
    path: str
    call: int  # which call of this kind at this path, from 1


Edit = Callable[[Site, Tensor], Tensor | None]  # gives the tensor to go on with, or None to leave it


class Listener(Protocol):
    """Hears of each site as the pass reaches it."""

    def begin(self) -> None:
        """A pass begins; sites that were reported before belong to a pass that had to be run again."""

    def value(self, site: Site, tensor: Tensor) -> None:
        """A value as it goes on, in the graph."""

    def fused(self, site: Site, modalities: Any, depth: int, numbers: tuple[Tensor, ...]) -> None:
        """A fused attention, whose map is nowhere yet; its rule will have this site on its call."""


@dataclass(eq=False)
class Captures(Tracker):
    """What to read (`wants`) and what to replace (`edit`); what was read is in `values`."""

    wants: Callable[[Site], bool] | None = None
    edit: Edit | None = None
    tell: Listener | None = None
    active: bool = False  # whether there is any of these
    enters: bool = False  # whether what enters modules is shown, not only what leaves them
    counts: bool = False  # whether attention is found
    tokens: Tokens | None = None  # follow which token each entry stands for
    projections: bool = False  # follow which state queries are projected from
    values: dict[Site, Tensor] = field(default_factory=dict)  # copies: the model may overwrite what was read
    edges: dict[Site, Any] = field(default_factory=dict)  # where a gradient by each of them is to be had
    attention: int = 0  # calls of it met
    _calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    def visit(self, kind: Any, path: str, tensor: Tensor) -> Tensor:
        """The tensor to go on with at this place."""
        site = self.arrive(kind, path)
        given = self.edit(site, tensor) if self.edit else None
        tensor = tensor if given is None else given
        if self.wants is not None and self.wants(site):
            self.values[site] = tensor.detach().clone()
            if born_in_a_pass(tensor):
                self.edges[site] = get_gradient_edge(tensor)
        if self.tell is not None:
            self.tell.value(site, tensor)
        return tensor

    def place(self) -> Counter[tuple[str, str]]:
        return Counter(self._calls)

    def again(self, place: Counter[tuple[str, str]]) -> None:
        self._calls = Counter(place)

    def arrive(self, kind: Any, path: str) -> Site:
        """The next call of this kind here."""
        self._calls[kind, path] += 1
        return Site(kind, path, self._calls[kind, path])

    def weights(self, family: str, live: list[Tensor]) -> Tensor | None:
        """The attention probabilities among the inputs of a product: of matrices, or of one weight per position."""
        if family not in ("matmul", "einsum", "bilinear", "multiply"):
            return None
        weights = next((t for t in live if store.get(t, _WEIGHTS, False)), None)
        if weights is None and family != "multiply":
            weights = next((t for t in live if store.get(t, _PIECE, False)), None)
        pooled = weights is not None and weights.dim() == 3 and weights.shape[-1] == 1  # (rows, n, 1)
        return None if family == "multiply" and not pooled else weights

    def describe(self, op: Op) -> None:
        """Tell the listener of a fused attention, and give its call the site."""
        if op.call is None or op.family != "scaled_dot_product_attention" or self.tell is None:
            return
        op.call.site = self.arrive("attention", op.path)
        given = operands(op.call.args, op.call.kwargs)
        pair = tuple(modality.modality_of(given[name]) for name in ("query", "key"))
        numbers = () if self.tokens is None else self.tokens.of_fused(op.call.args, op.call.kwargs)
        self.tell.fused(op.call.site, pair, max(map(modality.depth_of, op.live)), numbers)

    def follow(self, op: Op) -> None:
        """Tag a softmax's result, and what merely copies it."""
        family, live, outputs, group = op.family, op.live, op.outputs, GROUP.get(op.family)
        if group == "attention":
            self.attention += 1
        if self.projections:
            state = (
                live[0] if family == "linear" else next((s for t in live if (s := projected_from(t)) is not None), None)
            )
            for tensor in outputs if state is not None else ():
                store.put(tensor, _PROJECTED, state)
        copied = family in _COPIES or (group == "view" and family != "index")
        copies = copied and any(store.get(t, _WEIGHTS, False) for t in live)
        renormalised = family == "divide" and store.get(live[0], _WEIGHTS, False)
        if copies or renormalised or family == "softmax" or self._normalised(family, live, outputs):
            for tensor in outputs:
                store.put(tensor, _WEIGHTS, True)
        elif group == "view" and any(store.get(t, _WEIGHTS, False) or store.get(t, _PIECE, False) for t in live):
            for tensor in outputs:
                store.put(tensor, _PIECE, len(numbers_of(tensor)) == 2)

    def _normalised(self, family: str, live: list[Tensor], outputs: list[Tensor]) -> bool:
        """Whether this is the end of exp(x − logsumexp(x)), a softmax by hand."""
        on_the_way = any(store.get(t, _TOTAL, False) for t in live)
        if family == "logsumexp" or (family == "add" and on_the_way and len(live) == 2):
            for tensor in outputs:
                store.put(tensor, _TOTAL, True)
        return family == "exp" and on_the_way


def projected_from(tensor: Tensor) -> Tensor | None:
    """The hidden state that this was last projected from."""
    return store.get(tensor, _PROJECTED)


def layers(root: nn.Module | None) -> set[str]:
    """The paths of all members of module lists (or sequences, in a model that has no list)."""
    for kind in (nn.ModuleList, nn.Sequential):
        members = {
            f"{name}.{child}" if name else child
            for name, module in (root.named_modules() if root is not None else ())
            if isinstance(module, kind)
            for child, _ in module.named_children()
        }
        if members:
            return members
    return set()


def layer_of(members: set[str], path: str) -> str:
    """The innermost member of a module list that contains this path ('' if there is none)."""
    parts = path.split(".")
    prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in members), "")
