"""Reading the relevance of attention maps, and their gradients, from one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from whence.engine.call import Overwritten, derivative
from whence.engine.captures import Site
from whence.engine.trackers.tokens import Tokens
from whence.errors import NoAttention
from whence.methods.attention.attention_map import AttentionMap, merged
from whence.methods.attention.reading import Reading
from whence.methods.relevance.account import account
from whence.methods.relevance.passes import OPTIONS, UNIFORM, is_uniform, relevance_pass
from whence.rules.attnlrp import UNIFORM_EXPAND
from whence.rules.ledger import Ledger
from whence.subject import Subject
from whence.subject.passes import IN_PLACE, Pass
from whence.util.receipt import Later

Reduce = Callable[[Tensor, Tensor | None, Tensor], Tensor]  # a map, its gradient and its relevance → (rows, …)


def relevance_of_attention(
    subject: Subject, params: Mapping[str, Any], reduce: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """What is made of each map's relevance (rows, heads, query, key), in the order of the calls: (rows, k, …).

    A head's relevance is that of its output, of which its map has one half and its values the other.
    """
    composite = subject.method if subject.method in UNIFORM else params.get("composite", "chefer")
    options = {name: params[name] for name in OPTIONS if name in params}
    back = _Backward(lambda a, g, r: reduce(r), composite, gradient=False, last=False)
    _read(subject, back, options, quiet=True)
    if not back.met:
        raise no_attention(("attention_relevance",))
    return [m.stacked() if m.reduced else reduce(torch.zeros_like(a)).unsqueeze(1) for m, a in back.met]


def no_attention(names: Sequence[str]) -> NoAttention:
    return NoAttention(f"keep={tuple(names)!r}: this model has no attention, so nothing was kept.\n  Leave keep out.")


def read_relevance(subject: Subject, reduce: Reduce, composite: Any, *, gradient: bool, last: bool = False) -> Reading:
    """Maps with their relevance, and their gradients if `gradient` says so; `last`: of the last layer alone."""
    back = _Backward(reduce, composite, gradient, last)
    return _read(subject, back, {}, quiet=last or is_uniform(composite))


@dataclass(eq=False)
class _Backward:
    """Two ways back through one pass: the gradient comes first, the relevance of the same target later."""

    reduce: Reduce
    composite: Any
    gradient: bool  # the method asks for it; where the score reads the last layer is always read from it
    last: bool  # nothing below the last maps is wanted
    differentiates: bool = True
    met: list[tuple[AttentionMap, Tensor]] = field(default_factory=list)  # every call, with its map
    edges: dict[int, Any] = field(default_factory=dict)  # of the calls in the graph
    gradients: dict[int, list[Tensor]] = field(default_factory=dict)

    def begin(self) -> None:
        for of_an_earlier_pass in (self.met, self.edges, self.gradients):
            of_an_earlier_pass.clear()
        self.differentiates = True

    def watch(self, m: AttentionMap, tensor: Tensor) -> None:
        """A map of the forward pass, at which a way back may end."""
        if tensor.requires_grad:
            self.edges[id(m)] = get_gradient_edge(tensor)
            self.met.append((m, tensor.detach()))

    def receive(self, m: AttentionMap, a: Tensor, signal: Tensor | None) -> None:
        """What came back to a map, both (rows, heads, query, key)."""
        assert signal is not None
        gradients = self.gradients.setdefault(id(m), [])
        if self.differentiates:
            if self.gradient:
                gradients.append(signal)
            m.row_norms.append(signal.square().sum((1, 3)).sqrt())
        else:
            of_target = gradients[len(m.reduced)] if self.gradient else None
            relevance = signal * a if is_uniform(self.composite) else signal
            m.reduced.append(self.reduce(a, of_target, relevance))


@dataclass(eq=False)
class _Listener:
    """Tells a reading, the ways back and the ledger of one pass what it passes."""

    reading: Reading
    back: _Backward
    ledger: Ledger
    projections: bool = False

    @property
    def tokens(self) -> Tokens:
        return self.reading.tokens

    def begin(self) -> None:
        self.reading.begin()
        self.back.begin()

    def value(self, site: Site, tensor: Tensor) -> None:
        before = len(self.reading.maps)
        self.reading.value(site, tensor)
        if len(self.reading.maps) > before:
            self.back.watch(self.reading.maps[-1], tensor)
        self.ledger.value(site, tensor)

    def fused(self, site: Site, modalities: Any, depth: int, numbers: tuple[Tensor, ...]) -> None:
        self.reading.fused(site, modalities, depth, numbers)


def _read(subject: Subject, back: _Backward, options: Mapping[str, Any], quiet: bool) -> Reading:
    """One pass, and back twice; `quiet`: the receipt is another pass's."""
    reading = Reading(
        subject, back.receive, gradient=True, follows_rows=True, differentiates=lambda: back.differentiates
    )
    ledger = Ledger(subject.rows)
    plan: dict[str, Any] = {"tell": _Listener(reading, back, ledger), "ledger": ledger, "ahead": False, "rows": True}
    if is_uniform(back.composite):
        plan["expand"] = UNIFORM_EXPAND | {"scaled_dot_product_attention"}
    for copies in (False, True):
        done = relevance_pass(subject, back.composite, options, copies=copies, **plan)
        try:
            reading.per_row = _pull(reading, back, ledger, done, quiet)
            back.edges.clear()  # which hold the graph, and the graph's hooks hold us
            break
        except (RuntimeError, Overwritten) as error:
            if copies or not (isinstance(error, Overwritten) or IN_PLACE in str(error)):
                raise
    reading.maps = merged([m for m in reading.maps if m.reduced], reading.tokens)
    return reading


def _pull(reading: Reading, back: _Backward, ledger: Ledger, done: Pass, quiet: bool) -> dict[str, Later]:
    """The gradient, which tells at least where the score reads, and then the relevance; its account for the receipt."""
    if not back.edges:
        return {}
    ends = list(done.leaves.values())
    back.differentiates, ledger.on = True, False
    if back.gradient and not back.last:
        done.columns(ends, {"*": derivative}, again=True)
    else:
        reached = _reached(reading, back, done)
        ends = reached if back.last else ends
    back.differentiates, ledger.on = False, True
    columns = done.columns(ends) if ends else []
    return {} if quiet else account(reading.subject, ledger, done, done.gathered(columns))


def _reached(reading: Reading, back: _Backward, done: Pass) -> list[Any]:
    """The last maps of each kind that do something for the score."""
    maps = [m for m in reading.maps if id(m) in back.edges]
    while maps:
        depth = {(m.query, m.key): m.depth for m in maps}  # heads and blocks may come one by one
        last = [m for m in maps if m.depth == depth[m.query, m.key]]
        edges = [back.edges[id(m)] for m in last]
        for m in reading.maps:
            m.row_norms.clear()
        back.gradients.clear()
        for _, norms in reading.outputs.values():
            norms.clear()
        columns = done.columns(edges, {"*": derivative}, again=True)
        unused = [m for i, m in enumerate(last) if all(column[i] is None for column in columns)]
        if not unused:
            return edges
        maps = [m for m in maps if m not in unused]
    return []
