"""Relevance passes: a subject under LRP's rules, its account, and the relevance of attention maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from whence.engine.call import Overwritten, derivative
from whence.engine.captures import Site, layers
from whence.errors import NoAttention
from whence.methods.attention.reading import Map, Reading
from whence.methods.relevance.account import account
from whence.rules.attnlrp import UNIFORM_EXPAND, uniform_rules
from whence.rules.composites import composite_of
from whence.rules.ledger import Ledger
from whence.rules.lrp import RELEVANCE_EXPAND, relevance_rules
from whence.subject import Subject
from whence.subject.passes import IN_PLACE, Pass

UNIFORM = {"attnlrp": False, "cp_lrp": True}  # whether attention and gates are held constant
OPTIONS = ("epsilon", "gamma", "alpha", "beta", "low", "high", "stabilizer")  # lrp's, for its composites
Positions = Literal["token", "drop"]
ReduceAll = Callable[[Map, Tensor, Tensor | None, Tensor], Tensor]  # a map, its gradient and its relevance → (rows, …)


def is_uniform(composite: Any) -> bool:
    return isinstance(composite, str) and composite in UNIFORM


def relevance_pass(
    subject: Subject, composite: Any, options: Mapping[str, Any], positions: Positions = "drop", **plan: Any
) -> Pass:
    """One forward pass that relevance can be sent back through, with a ledger.

    `positions`: whether what is added to a token's embedding at its own position gives its share to the token.
    """
    options, back = dict(options), positions == "token" and "ids" in subject.roles.values()
    if is_uniform(composite):  # whose relevance is x ⊙ m
        ledger = Ledger(subject.rows, multiplies=True, only=layers(subject.root).__contains__)
        rules, expand, rows = uniform_rules(UNIFORM[composite], back), UNIFORM_EXPAND, subject.rows > 1
    else:
        chosen = composite_of(composite, options, options.pop("stabilizer", 1e-6))
        ledger, rules, expand, rows = Ledger(subject.rows), relevance_rules(chosen), RELEVANCE_EXPAND, True
        ledger.unmet = chosen.unmet
    ledger.gives_back = back
    return subject.run(rules, **{"expand": expand, "rows": rows, "ledger": ledger, **plan})


def relevance_of_attention(
    subject: Subject, params: Mapping[str, Any], reduce: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """What is made of each map's relevance (rows, heads, query, key), in the order of the calls: (rows, k, …).

    A head's relevance is that of its output, of which its map has one half and its values the other.
    """
    composite = subject.method if subject.method in UNIFORM else params.get("composite", "chefer")
    options = {name: params[name] for name in OPTIONS if name in params}
    reading = Relevance(subject, lambda m, a, g, r: reduce(r), composite, gradient=False, quiet=True, options=options)
    reading.run("first")
    if not reading.seen:
        raise no_attention(("attention_relevance",))
    return [m.stacked() if m.found else reduce(torch.zeros_like(a)).unsqueeze(1) for m, a in reading.seen]


def no_attention(names: Sequence[str]) -> NoAttention:
    return NoAttention(f"keep={tuple(names)!r}: this model has no attention, so nothing was kept.\n  Leave keep out.")


class Relevance(Reading):
    """Attention maps with their relevance, and their gradients if `gradient` says so, from one forward pass.

    `last`: nothing below the last maps is wanted; `quiet`: the receipt is another pass's.
    """

    def __init__(
        self, subject: Subject, reduce: ReduceAll, composite: Any, *, gradient: bool, last: bool = False,
        quiet: bool = False, options: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._options = options or {}
        self._reduce_all, self._composite, self._wants_gradient, self._last = reduce, composite, gradient, last
        self._quiet = quiet or last or is_uniform(composite)
        self._phase, self.ledger = "", Ledger(subject.rows)
        super().__init__(subject, lambda m, a, g: a, gradient=True)
        self._follows_rows = True

    def begin(self) -> None:
        super().begin()
        self.seen: list[tuple[Map, Tensor]] = []  # every call, with its map
        self._edges: dict[int, Any] = {}
        self._gradients: dict[int, list[Tensor]] = {}

    def value(self, site: Site, tensor: Tensor) -> None:
        before = len(self.maps)
        super().value(site, tensor)
        if len(self.maps) > before and tensor.requires_grad:
            self._edges[id(self.maps[-1])] = get_gradient_edge(tensor)
            self.seen.append((self.maps[-1], tensor.detach()))
        self.ledger.value(site, tensor)

    def _pass(self, auto: bool) -> None:
        for copies in (False, True):
            plan: dict[str, Any] = {"tell": self, "ledger": self.ledger, "copies": copies, "ahead": False, "rows": True}
            if is_uniform(self._composite):
                plan["expand"] = UNIFORM_EXPAND | {"scaled_dot_product_attention"}
            done = relevance_pass(self.subject, self._composite, self._options, **plan)
            try:
                self._pull(done)
                self._edges.clear()  # which hold the graph, and the graph's hooks hold us
                break
            except (RuntimeError, Overwritten) as error:
                if copies or not (isinstance(error, Overwritten) or IN_PLACE in str(error)):
                    raise
        self.maps = [m for m in self.maps if m.found]

    def _pull(self, done: Pass) -> None:
        """The gradient comes first: it tells where the score reads, at least."""
        if not self._edges:
            return
        ends = list(done.leaves.values())
        self._phase, self.ledger.on = "gradient", False
        if self._wants_gradient and not self._last:
            done.columns(ends, {"*": derivative}, again=True)
        else:
            reached = self._reached(done)
            ends = reached if self._last else ends
        self._phase, self.ledger.on = "relevance", True
        found = done.columns(ends) if ends else []
        if not self._quiet:
            self.per_row = account(self.subject, self.ledger, done, done.gathered(found))

    def _reached(self, done: Pass) -> list[Any]:
        """The last maps of each kind that do something for the score."""
        maps = [m for m in self.maps if id(m) in self._edges]
        while maps:
            depth = {(m.query, m.key): m.depth for m in maps}  # heads and blocks may come one by one
            last = [m for m in maps if m.depth == depth[m.query, m.key]]
            edges = [self._edges[id(m)] for m in last]
            for m in self.maps:
                m.read.clear()
            self._gradients.clear()
            for _, norms in self.left.values():
                norms.clear()
            columns = done.columns(edges, {"*": derivative}, again=True)
            aside = [m for i, m in enumerate(last) if all(column[i] is None for column in columns)]
            if not aside:
                return edges
            maps = [m for m in maps if m not in aside]
        return []

    def _norm(self, norms: list[Tensor], value: Callable[[], Tensor]) -> None:
        if self._phase == "gradient":
            norms.append(value())

    def _reduce(self, found: Map, weights: Tensor, gradient: Tensor | None, place: Any = None) -> None:
        """The gradient comes first, the relevance of the same target later."""
        a, signal = self._turned(found, weights, gradient, place)
        assert signal is not None
        seen = self._gradients.setdefault(id(found), [])
        if self._phase == "gradient":
            if self._wants_gradient:
                seen.append(signal)
            found.read.append(signal.square().sum((1, 3)).sqrt())
        else:
            of_target = seen[len(found.found)] if self._wants_gradient else None
            signal = signal * a if is_uniform(self._composite) else signal
            found.found.append(self._reduce_all(found, a, of_target, signal))
